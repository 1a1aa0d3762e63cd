"""Prefixes that running sequences compute now. Another sequence that needs one waits for it, and shares it.

    maker       a b c d e f ...     computes blocks d, e and f
    follower    a b c d e x ...     has a, b and c from the cache, and waits until e is in it

A partial block (`capabilities/partial_blocks.py`) may be waited for in the same way.

A follower is passed over when others are admitted. It gets its place in the queue back when the maker has
computed the last block that both have. If the maker leaves before, the first follower computes the rest.
Until then the maker is as urgent as its most urgent follower.
"""

from collections import deque
from collections.abc import Iterable

from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.waiting import WaitingQueue


class UnfinishedPrefixes:
    """Which sequence computes which block for the cache, and which sequences wait for it."""

    def __init__(self, waiting: WaitingQueue) -> None:
        """`waiting`: the queue to which followers return."""
        self._waiting = waiting
        self._maker: dict[bytes, Sequence] = {}
        self._names: dict[Sequence, deque[tuple[int, bytes]]] = {}
        self._followers: dict[Sequence, list[tuple[int, Sequence]]] = {}
        self._partial: dict[bytes, Sequence] = {}
        """Who makes which partial block."""
        self._await_partial: dict[Sequence, dict[bytes, list[Sequence]]] = {}
        """Of each maker's partial blocks: the sequences that wait for them."""

    def begin(self, maker: Sequence, first: int, end: int) -> None:
        """The sequence computes the blocks `first` to `end` - 1 of its chain from now on."""
        numbered = enumerate(maker.chain[first:end], first)
        names = deque((number, name) for number, name in numbered if name not in self._maker)
        if names:
            self._names.setdefault(maker, deque()).extend(names)
            self._maker.update(dict.fromkeys((name for _, name in names), maker))

    def makes(self, sequence: Sequence) -> bool:
        """Whether there are blocks that the sequence computes for the cache."""
        return sequence in self._names

    def defer(self, sequence: Sequence, first: int, end: int) -> bool:
        """Whether another sequence computes block `first` of this one's chain already: then this one waits.

        `end`: number of blocks that it could take from the cache at most.
        """
        maker = self._maker.get(sequence.chain[first]) if first < end else None
        if maker is None:
            return False
        while first < end and self._maker.get(sequence.chain[first]) is maker:
            first += 1
        self._followers.setdefault(maker, []).append((first, sequence))
        return True

    def begin_partial(self, maker: Sequence, name: bytes) -> None:
        """The sequence is to make a partial block."""
        if self._partial.setdefault(name, maker) is maker:
            self._await_partial.setdefault(maker, {})[name] = []

    def defer_partial(self, sequence: Sequence, names: Iterable[bytes]) -> bool:
        """Whether another sequence is to make one of these partial blocks: then this one waits for the first
        such."""
        for name in names if self._partial else ():
            if (maker := self._partial.get(name)) is not None:
                self._await_partial[maker][name].append(sequence)
                return True
        return False

    def settled(self, name: bytes) -> None:
        """A partial block is in the cache, or will not be made: nobody waits for it any more."""
        if (maker := self._partial.pop(name, None)) is not None:
            for follower in self._await_partial[maker].pop(name):
                self._waiting.push(follower)

    def reached(self, maker: Sequence, blocks: int) -> None:
        """The maker's first `blocks` blocks are in the cache: nobody waits for them any more."""
        names = self._names.get(maker)
        while names and names[0][0] < blocks:
            del self._maker[names.popleft()[1]]
        followers = self._followers.pop(maker, None)
        if followers is None:
            return
        for needed, follower in followers:
            if needed <= blocks:
                self._waiting.push(follower)
        if still := [each for each in followers if each[0] > blocks]:
            self._followers[maker] = still

    def followers_of(self, maker: Sequence) -> list[Sequence]:
        """The sequences that wait for the maker. It is as urgent as the most urgent of them."""
        found = [follower for _, follower in self._followers.get(maker, ()) if follower.waits]
        for some in self._await_partial.get(maker, {}).values():
            found += [follower for follower in some if follower.waits]
        return found

    def leave(self, maker: Sequence) -> None:
        """The sequence has stopped computing: its followers return to the queue."""
        for _, name in self._names.pop(maker, ()):
            del self._maker[name]
        for _, follower in self._followers.pop(maker, ()):
            self._waiting.push(follower)
        for name in list(self._await_partial.get(maker, ())):
            self.settled(name)
        self._await_partial.pop(maker, None)

    def followers(self) -> list[Sequence]:
        """All sequences that wait for a maker."""
        return [
            each for maker in {**self._followers, **self._await_partial} for each in self.followers_of(maker)
        ]

    def drain(self) -> None:
        """Return all followers to the queue."""
        for followers in self._followers.values():
            for _, follower in followers:
                self._waiting.push(follower)
        self._followers.clear()
        for name in list(self._partial):
            self.settled(name)
