"""A heap whose members change their keys, and leave from anywhere."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Member = TypeVar("Member")


class LazyHeap(Generic[Member]):
    """Members by key, the lowest first. A member is entered anew when its key has changed.

    Outdated entries stay in the heap until they come up, or until half of it is such entries. So each change
    costs the logarithm of how many members there are.
    """

    def __init__(self) -> None:
        self._entries: dict[Member, tuple[Any, ...]] = {}
        """(key..., member) of each member. No two keys are equal."""
        self._heap: list[tuple[Any, ...]] = []
        """All of these, and outdated ones."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, member: Member) -> bool:
        return member in self._entries

    def key_of(self, member: Member) -> tuple[Any, ...] | None:
        """The key with which a member was entered; None if it is not there."""
        entry = self._entries.get(member)
        return None if entry is None else entry[:-1]

    def enter(self, member: Member, key: tuple[Any, ...]) -> None:
        """Add a member, or take note of its key."""
        entry = self._entries[member] = (*key, member)
        heappush(self._heap, entry)
        self._tidy()

    def leave(self, member: Member) -> None:
        """Remove a member. Nothing happens if it is not there."""
        self._entries.pop(member, None)
        self._tidy()

    def first(self, fits: Callable[[Member], bool] | None = None) -> Member | None:
        """The member with the lowest key, or of those that fit; None if there is none."""
        heap, found = self._heap, None
        unfit: list[tuple[Any, ...]] = []
        while heap and found is None:
            member: Member = heap[0][-1]
            if self._entries.get(member) is not heap[0]:
                heappop(heap)
            elif fits is not None and not fits(member):
                unfit.append(heappop(heap))
            else:
                found = member
        for entry in unfit:
            heappush(heap, entry)
        return found

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._entries):
            self._heap = list(self._entries.values())
            heapify(self._heap)
