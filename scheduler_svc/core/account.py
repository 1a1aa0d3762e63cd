"""What a tenant, or one of its users, has of a worker and has had of it.

    all tenants ─┬─ tenant ─┬─ user      slots         that its sequences have now
                 │          └─ user      served        slots, times the steps for which it had them
                 └─ tenant ─── user      start tag     prompt tokens that were computed for it

An account is compared only with the other members of its parent. What users have adds up in their tenant, so
a tenant gains nothing over other tenants by having many users.

Prompt tokens are counted as in start-time fair queueing (Goyal, Vin and Cheng 1996). The member with the
lowest start tag comes next. A member that asked for nothing for a while cannot claim that share later.

New members begin where one stands that has taken turns with all others, in slots and in prompt tokens. That
place moves on while members come, as virtual time in weighted fair queueing does (Parekh and Gallager 1993).
If new ones began where the least served stands, a member that has had more would wait while others come.

A member whose requests have all ended leaves. What it has had more than others still counts if it comes back
soon: who asks for one thing after the other gains nothing over those who ask for all at once. What members
had long ago counts no more: slots that nobody else wanted then are no reason to wait now.
"""

from collections.abc import Collection, Container
from dataclasses import dataclass, field

from scheduler_svc.core.lazy_heap import LazyHeap

MOST_LEFT = 1024
"""Members of an account that are remembered when they have left: the latest. Clients name users as they
like."""

Claim = tuple[int, int, int]
"""(slots now, slots before, number): see `Account.claim`."""


@dataclass(slots=True, eq=False, repr=False)
class Account:
    """Counters of a tenant, of a user, or of all tenants. They are updated per admission and per chunk."""

    name: str = ""
    parent: "Account | None" = None
    number: int = 0
    """Accounts are numbered as they are opened."""
    members: "dict[str, Account]" = field(default_factory=dict)
    """Users of a tenant, or all tenants, that have requests."""
    left: "dict[str, Account]" = field(default_factory=dict)
    """Those that have none any more, and have had more than a new one would count as. In the order in which
    they left."""
    seated: "dict[Account, None]" = field(default_factory=dict)
    """Members that have slots."""
    waiting: "LazyHeap[Account]" = field(default_factory=LazyHeap)
    """Members of which sequences wait; see `WaitingQueue`."""
    requests: int = 0
    """Number of a user's requests that have not ended."""
    searches: int = 0
    """Number of these requests that are beam searches."""
    slots: int = 0
    """Slots that its sequences have now."""
    virtual_time: float = 0.0
    """Start tag of the member that was charged last."""
    _offset: int = 0
    _finish_tag: float = 0.0
    _even: float = 0.0
    """Slots, times steps, of a member that has taken turns with all others."""
    _counted: int = 0
    """Step until which `_even` is counted."""
    _even_tag: float = 0.0
    """Prompt tokens of such a member."""

    @property
    def owner(self) -> "Account":
        """The parent, which every account has but that of all tenants."""
        assert self.parent is not None
        return self.parent

    @property
    def claim(self) -> Claim:
        """The lower, the sooner its next sequence gets a slot: who has fewest slots, then who had fewest."""
        # Among accounts with equally many slots the order of `served` is that of the offsets.
        return self.slots, self._offset, self.number

    def served(self, step: int) -> int:
        """Slots that it has had, times the steps for which it had them, until step number `step`."""
        return self._offset + self.slots * step

    def least_served(self, new: Container["Account"], step: int) -> int:
        """What the least served of the members that are not `new` has had; 0 if there is none."""
        return min((each.served(step) for each in self.members.values() if each not in new), default=0)

    def level(self, new: Collection["Account"], step: int) -> None:
        """Let the `new` members count as having had what one has had that took turns, if they had less.

        Step number `step` is about to be planned.
        """
        self._count_turns(step - 1)  # from which on slots count that are taken in this step
        self._even = max(self._even, self.least_served(new, step))
        self._even_tag = max(self._even_tag, self.virtual_time)
        for each in new:
            each._offset = max(each._offset, int(self._even))
            each._finish_tag = max(each._finish_tag, self._even_tag)
            each._claim_again()

    def enter(self, step: int) -> None:
        """Take note that it has its first request, at step number `step`."""
        self.owner._count_turns(step)
        self.owner.members[self.name] = self

    def leave(self, step: int) -> None:
        """Take note that its last request has ended."""
        owner = self.owner
        owner._count_turns(step)
        del owner.members[self.name]
        owner.left[self.name] = self
        if len(owner.left) > MOST_LEFT:
            del owner.left[next(iter(owner.left))]

    def forget(self, new: Container["Account"], step: int, turn: int) -> None:
        """Let no member that is not `new` count as served more than two turns longer than the least, of
        `turn` steps for each slot that one has at most; and forget those that have left, if they count as new
        ones would."""
        if len(self.members) < 2 and not self.left:  # most tenants have one user
            return
        members = [each for each in self.members.values() if each not in new]
        if not members:
            if not self.members:
                self.left.clear()
            return
        least = min(each.served(step) for each in members)
        most = least + 2 * turn * (1 + max(each.slots for each in members))
        self._even = min(self._even, most)
        for each in (*members, *self.left.values()):
            if (more := each.served(step) - most) > 0:
                each._offset -= more
                each._claim_again()
        self.left = {
            each.name: each
            for each in self.left.values()
            if each.served(step) > least or each._finish_tag > self.virtual_time
        }

    def take_slots(self, count: int, step: int) -> None:
        """Take note that it has `count` slots more from step number `step` on; fewer, if negative."""
        owner = self.owner
        owner._count_turns(step)
        self.slots += count
        self._offset -= count * step
        if self.slots:
            owner.seated[self] = None
        else:
            owner.seated.pop(self, None)
        self._claim_again()

    @property
    def start_tag(self) -> float:
        """Prompt tokens that were computed for it; never less than of the member charged last."""
        return max(self._finish_tag, self.owner.virtual_time)

    def charge(self, tokens: int) -> None:
        """Take note that `tokens` tokens of its prompts are computed."""
        owner, start = self.owner, self.start_tag
        owner.virtual_time = start
        owner._even_tag += tokens / len(owner.members)
        self._finish_tag = start + tokens

    def _count_turns(self, step: int) -> None:
        """Count what a member has had until step number `step` that took turns with all others. To be called
        before members come, leave, get their first slots or lose their last."""
        if step > self._counted:
            if self.members:
                self._even += (step - self._counted) * len(self.seated) / len(self.members)
            self._counted = step

    def _claim_again(self) -> None:
        """Take note that its claim has changed."""
        if self in self.owner.waiting:
            self.owner.waiting.enter(self, self.claim)
