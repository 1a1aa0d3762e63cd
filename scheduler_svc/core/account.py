"""What a tenant, or one of its users, has of a worker and has had of it.

    all tenants ─┬─ tenant ─┬─ user      slots         that its sequences have now
                 │          └─ user      served        slots, times the steps for which it had them
                 └─ tenant ─── user      start tag     prompt tokens that were computed for it

An account is compared only with the other members of its parent. What users have adds up in their tenant, so
a tenant gains nothing over other tenants by having many users.

Prompt tokens are counted as in start-time fair queueing (Goyal, Vin and Cheng 1996). The member with the
lowest start tag comes next. A member that asked for nothing for a while cannot claim that share later.

A member whose requests have all ended leaves. What it has had more than others still counts if it comes back
soon: who asks for one thing after the other gains nothing over those who ask for all at once. What members
had long ago counts no more: slots that nobody else wanted then are no reason to wait now.
"""

from collections.abc import Container

MOST_LEFT = 1024
"""Members of an account that are remembered when they have left: the latest. Clients name users as they
like."""


class Account:
    """Counters of a tenant, of a user, or of all tenants. They are updated per admission and per chunk."""

    __slots__ = (
        "_finish_tag",
        "_offset",
        "left",
        "members",
        "name",
        "number",
        "parent",
        "requests",
        "searches",
        "slots",
        "virtual_time",
    )

    def __init__(self, name: str = "", parent: "Account | None" = None, number: int = 0) -> None:
        """`number`: accounts are numbered as they are opened."""
        self.name = name
        self.parent = parent
        self.number = number
        self.members: dict[str, Account] = {}
        """Users of a tenant, or all tenants, that have requests."""
        self.left: dict[str, Account] = {}
        """Those that have none any more, and have had more than a new one would count as. In the order in
        which they left."""
        self.requests = 0
        """Number of a user's requests that have not ended."""
        self.searches = 0
        """Number of these requests that are beam searches."""
        self.slots = 0
        """Slots that its sequences have now."""
        self.virtual_time = 0
        """Start tag of the member that was charged last."""
        self._offset = 0
        self._finish_tag = 0

    @property
    def owner(self) -> "Account":
        """The parent, which every account has but that of all tenants."""
        assert self.parent is not None
        return self.parent

    @property
    def claim(self) -> tuple[int, int, int]:
        """The lower, the sooner its next sequence gets a slot: who has fewest slots, then who had fewest."""
        # Among accounts with equally many slots the order of `served` is that of the offsets.
        return self.slots, self._offset, self.number

    def served(self, step: int) -> int:
        """Slots that it has had, times the steps for which it had them, until step number `step`."""
        return self._offset + self.slots * step

    def level(self, new: Container["Account"], step: int) -> None:
        """Let an account that has come count as served as much as the least served of those that are not
        `new`, if it has been served less."""
        others = (each.served(step) for each in self.owner.members.values() if each not in new)
        self._offset = max(self._offset, min(others, default=0))

    def leave(self) -> None:
        """Take note that its last request has ended."""
        owner = self.owner
        del owner.members[self.name]
        owner.left[self.name] = self
        if len(owner.left) > MOST_LEFT:
            del owner.left[next(iter(owner.left))]

    def forget(self, new: Container["Account"], step: int, turn: int) -> None:
        """Let no member that is not `new` count as served more than two turns longer than the least, of
        `turn` steps for each slot that one has at most; and forget those that have left, if they count as new
        ones would."""
        members = [each for each in self.members.values() if each not in new]
        if not members:
            if not self.members:
                self.left.clear()
            return
        least = min(each.served(step) for each in members)
        most = least + 2 * turn * (1 + max(each.slots for each in members))
        for each in (*members, *self.left.values()):
            each._offset -= max(0, each.served(step) - most)
        self.left = {
            each.name: each
            for each in self.left.values()
            if each.served(step) > least or each._finish_tag > self.virtual_time
        }

    def take_slots(self, count: int, step: int) -> None:
        """Take note that it has `count` slots more from step number `step` on; fewer, if negative."""
        self.slots += count
        self._offset -= count * step

    @property
    def start_tag(self) -> int:
        """Prompt tokens that were computed for it; never less than of the member charged last."""
        return max(self._finish_tag, self.owner.virtual_time)

    def charge(self, tokens: int) -> None:
        """Take note that `tokens` tokens of its prompts are computed."""
        owner, start = self.owner, self.start_tag
        owner.virtual_time = start
        self._finish_tag = start + tokens
