"""The slots and steps of one worker, shared among tenants, and a tenant's share among its users.

A policy orders the requests of one user. Shares come before it, whatever the policy. While only one user has
requests, nothing here is asked.

Slots and memory are shared by rank. A sequence's rank is the number of older ones that its tenant has in the
batch. The order of ranks is that in which sequences get blocks; the last one is preempted first.

    tenant A    a0 a1 a2 a3                  order      a0 b0 a1 b1 a2 a3
    tenant B    b0 b1     and b2 waits       a3 yields to b2, whose rank would be 2

So whoever waits gets slots until its tenant has as many as each of the others, or nothing waits. After that
nobody is preempted for it. Where the slots cannot be divided evenly, tenants take turns at the last one: a
sequence of the rank that the waiting one would have yields, too, when its tenant has had a turn more. Users
share their tenant's slots by the same rule.

A turn bounds what preemption costs. A sequence is preempted for another tenant or user only after its turn.
That is `TURN` steps, or as many as it took to compute again what it had lost and to see its images again, if
these were more. So each turn gains at least as much as it repeats, and no two sequences keep preempting each
other. Tenants take turns at a last slot only while the tokens to be computed again are fewer than
1 / `RARELY` of those that the worker's steps could have computed.

The prompt tokens of a step are shared by counting them, see `account.py`: the tenant for which fewest were
computed comes first.
"""

from collections.abc import Callable, Iterable, Iterator
from math import inf

from scheduler_svc.core.account import Account
from scheduler_svc.core.sequence import Sequence, SequenceGroup

TURN = 32
"""Steps that a sequence keeps its slot at least, before it yields to another tenant or user."""

RARELY = 64
"""Steps that pass for each step of prompt tokens that turns at a last slot make the worker compute again."""


class Shares:
    """Which tenant or user has how much of one worker, and whose sequence makes way for whose."""

    def __init__(self, step_tokens: int) -> None:
        """`step_tokens`: tokens that a step may compute."""
        self.step = self._forgot = 0
        """Number of the step that is being planned, or was planned last; and that of the last `forget`."""
        self.contended = False
        """Whether more than one user has requests."""
        self._step_tokens = step_tokens
        self._spare, self._spare_since = float(step_tokens), 0
        """Tokens that may be computed again, as counted in that step: more with every step."""
        self.tenants = Account()
        """The account of all tenants."""
        self._opened = self._users = 0
        self._new: dict[Account, None] = {}
        """Accounts opened since the last step."""
        self._order: list[Sequence] | None = None

    def begin_step(self, step: int) -> None:
        """Take note that step number `step` is planned from now on.

        If a tenant has come that had no requests, all are looked at: of 5,000 it takes 0.6 ms.
        """
        self.step = step
        if self._new:
            new: dict[Account, dict[Account, None]] = {}
            for account in self._new:
                new.setdefault(account.owner, {})[account] = None
            for owner, members in new.items():
                owner.level(members, step)
            self._new.clear()
        self.forget()

    def forget(self) -> None:
        """Forget what was long ago, once in `TURN` steps; see `Account.forget`. All tenants are looked at: of
        5,000 it takes 5 ms, 0.2 ms for each step."""
        while self._forgot + TURN <= self.step:
            self._forgot += TURN
            for account in (self.tenants, *self.tenants.members.values(), *self.tenants.left.values()):
                account.forget(self._new, self._forgot, TURN)

    def enter(self, group: SequenceGroup) -> None:
        """Take note of a request that this worker gets."""
        request = group.request
        user = self._open(self._open(self.tenants, request.tenant), request.user)
        if not user.requests:
            self._users += 1
            self.contended = self._users > 1
        user.requests += 1
        user.searches += request.beams is not None
        group.account = user

    def leave(self, group: SequenceGroup) -> None:
        """Take note that a request has ended here. All its slots have been given up."""
        user = group.account
        user.requests -= 1
        user.searches -= group.request.beams is not None
        if not user.requests:
            user.leave(self.step)
            if not user.owner.members:
                user.owner.leave(self.step)
            self._users -= 1
            self.contended = self._users > 1

    def took_slot(self, sequence: Sequence) -> None:
        """Take note that a sequence got a slot: its turn begins."""
        self._move(sequence, 1, self.step - 1)  # one that ends before the next step has had a step, too
        self._spare += max(0, sequence.reached - sequence.admission_cost)  # what it found in the cache
        sequence.turn_begin, sequence.turn_end = self.step, inf

    def gave_slot(self, sequence: Sequence) -> None:
        """Take note that a sequence gave up its slot."""
        self._move(sequence, -1, self.step)

    def charge_again(self, sequence: Sequence) -> None:
        """Take note that a sequence made way for one that waits, and may have to be computed again."""
        again = sequence.reached
        # However many made way before, nobody waits for longer than the last of them costs.
        self._spare = max(self._spare - again, -again)

    def computes(self, sequence: Sequence, tokens: int) -> None:
        """Take note that a step computes known tokens of a sequence. The last one may wait for a grammar."""
        if self.contended:
            user = sequence.group.account
            user.owner.charge(tokens)
            user.charge(tokens)
        again = sequence.planned < min(sequence.reached, len(sequence.tokens) - 1)
        if sequence.turn_end == inf and not (again or sequence.sight):
            self.has_begun(sequence)

    def has_begun(self, sequence: Sequence) -> None:
        """Take note that a sequence has done again all that was done before it lost its slot."""
        sequence.turn_end = self.step + max(TURN, self.step - sequence.turn_begin)

    def order(self, running: list[Sequence]) -> list[Sequence]:
        """The running sequences, given oldest first, in the order in which they get blocks."""
        if not self.contended:
            return running
        if self._order is None:
            by_user = _in_ranks(running, lambda sequence: sequence.group.account)
            ranked = _in_ranks([sequence for _, sequence in by_user], lambda each: each.group.account.owner)
            # Tenants do not overtake each other by a policy's measure: the earlier arrival comes first.
            ranked.sort(key=lambda each: (each[0], each[1].age[1:]))
            self._order = [sequence for _, sequence in ranked]
        return self._order

    def urgency(self, sequence: Sequence) -> tuple[float, ...]:
        """By what sequences with known tokens to compute are ordered: the lower, the earlier."""
        if not self.contended:
            return sequence.age
        user = sequence.group.account
        return (user.owner.start_tag, user.start_tag, *sequence.age)

    def owed(self, heads: Iterable[Sequence]) -> Iterator[Sequence]:
        """Those for which another tenant or user may have to make way.

        `heads`: see `WaitingQueue.heads`. Where the first tenant is owed nothing no other tenant is, and the
        same holds for the users of a tenant. A tenant without slots has none that is due to its users.
        """
        for place, head in enumerate(heads):
            user = head.group.account
            if self._is_owed(user) or (place == 0 and self._is_owed(user.owner)):
                yield head

    def precedes(self, waiting: Sequence, other: Sequence) -> bool:
        """Whether a free slot is due to the waiting sequence rather than to one of another tenant or user."""
        mine, its = _rivals(waiting, other)
        return its.slots > mine.slots

    def yielding(
        self,
        running: list[Sequence],
        waiting: Sequence,
        yields: Callable[[Sequence], bool],
        evenly: bool = False,
    ) -> Iterator[Sequence]:
        """The sequences that make way for a waiting one, in the order in which they are preempted.

        `yields`: whether a sequence of the same user does. `evenly`: one of the rank that the waiting one
        would have makes way, too, whoever's turn it is.
        """
        user = waiting.group.account
        left = dict[Account, int]()
        for sequence in reversed(self.order(running)):
            its = sequence.group.account
            for account in (its, its.owner):
                left[account] = left.get(account, account.slots) - 1
            if its is user:
                if yields(sequence):
                    yield sequence
            elif sequence.turn_end <= self.step:
                mine, rival = _rivals(waiting, sequence)
                rank = left[rival]
                if rank + evenly > mine.slots or self._has_turn(mine, rival, rank):
                    yield sequence

    def check(self, running: Iterable[Sequence]) -> bool:
        """Whether the accounts agree with the batch."""
        slots = dict[Account, int]()
        for sequence in running:
            for account in (sequence.group.account, sequence.group.account.owner):
                slots[account] = slots.get(account, 0) + 1
        tenants = self.tenants.members.values()
        users = [user for tenant in tenants for user in tenant.members.values()]
        seated = {account for each in (self.tenants, *tenants) for account in each.seated}
        agree = all(account.slots == slots.get(account, 0) for account in (*tenants, *users))
        return agree and seated == slots.keys()

    def _open(self, parent: Account, name: str) -> Account:
        """The member of that name."""
        account = parent.members.get(name)
        if account is None:
            self._opened += 1
            account = parent.left.pop(name, None) or Account(name, parent)
            account.number = self._opened
            account.enter(self.step)
            self._new[account] = None
        return account

    def _move(self, sequence: Sequence, slots: int, step: int) -> None:
        user = sequence.group.account
        user.take_slots(slots, step)
        user.owner.take_slots(slots, step)
        self._order = None

    def _is_owed(self, account: Account) -> bool:
        """Whether another member of the same parent has a slot that is due to this one."""
        due = account.slots + 1
        return any(
            other.slots > due or self._has_turn(account, other, other.slots - 1)
            for other in account.owner.seated
        )

    def _has_turn(self, mine: Account, its: Account, rank: int) -> bool:
        """Whether a slot of that rank goes from one account to the other because it is the other's turn."""
        if rank != mine.slots or its.served(self.step) - mine.served(self.step) < TURN * (rank + 1):
            return False
        grown = (self.step - self._spare_since) * self._step_tokens / RARELY
        self._spare, self._spare_since = min(self._step_tokens, self._spare + grown), self.step
        return self._spare > 0


def _rivals(one: Sequence, other: Sequence) -> tuple[Account, Account]:
    """The accounts in which two sequences differ: their tenants, or users of the same tenant."""
    mine, its = one.group.account, other.group.account
    return (mine, its) if mine.parent is its.parent else (mine.owner, its.owner)


def _in_ranks(
    sequences: Iterable[Sequence], account_of: Callable[[Sequence], Account]
) -> list[tuple[int, Sequence]]:
    """Sequences with their ranks in their accounts, sorted by rank; equal ranks keep their order."""
    seen, ranked = dict[Account, int](), []
    for sequence in sequences:
        account = account_of(sequence)
        rank = seen.get(account, 0)
        seen[account] = rank + 1
        ranked.append((rank, sequence))
    ranked.sort(key=lambda each: each[0])
    return ranked
