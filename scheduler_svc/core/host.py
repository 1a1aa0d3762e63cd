"""Host memory behind the block pool: contents that were evicted from the device and can come back.

    device block ── evicted ──▶ host slot         swap out     of a full, confirmed block
    device block ◀── hit ────── host slot         swap in      into a block that is given out for it

A preempted sequence is not moved. Its full blocks stay in the pool's cache, as those of a sequence that ended
do, and go to the host one by one when their memory is needed. When it is admitted again, the blocks that are
still on the device are hit, and the others are brought back. So preemption and prefixes that outlive the
device's memory are one mechanism.

A content that is brought back keeps its slot, so evicting it again moves nothing. When the slots run out, the
content that was least recently moved is dropped.

A worker runs the swaps of a plan before its rows, swaps out before swaps in, and plans in their order. So a
swap out reads what earlier plans have written: only confirmed blocks have a name, and no plan writes to a
block that is in no table. A swap in may read a slot that a swap out of the same plan writes, but not the
other way round: a slot that a plan names keeps its content until that plan is made. A plan never takes back a
block into which it swaps: such a block belongs to a sequence that was admitted after everything that may
preempt.
"""

from collections import OrderedDict
from typing import NamedTuple

from scheduler_svc.core.errors import IntegrityError


class Swaps(NamedTuple):
    """What one step moves to and from host memory; see `SwapOut` and `SwapIn` in worker.proto."""

    out: list[tuple[int, int]]
    """(block, host slot)."""
    back: list[tuple[int, int]]
    """(host slot, block)."""


class HostPool:
    """Slots 0 to num_slots - 1, each for the content of one block. Every operation takes constant time."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._empty = list(range(num_slots - 1, -1, -1))
        # The order is the order in which contents are dropped.
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()
        self._swaps = Swaps([], [])
        self._named: set[bytes] = set()
        """Contents whose slots the plan that is being made names."""

    @property
    def used_slots(self) -> int:
        """Slots that hold a content."""
        return len(self._slot_of)

    def __contains__(self, content: bytes) -> bool:
        return content in self._slot_of

    def keep(self, content: bytes, block: int) -> None:
        """Take over the content of a block that is about to be given out again, if there is a slot."""
        if content in self._slot_of:
            self._slot_of.move_to_end(content)
            return
        if self._empty:
            slot = self._empty.pop()
        else:
            oldest = next(iter(self._slot_of))
            if oldest in self._named:
                return
            slot = self._slot_of.pop(oldest)
        self._slot_of[content] = slot
        self._named.add(content)
        self._swaps.out.append((block, slot))

    def reserve(self, content: bytes) -> None:
        """Keep the content's slot: the plan that is being made will bring it back."""
        self._slot_of.move_to_end(content)
        self._named.add(content)

    def bring(self, content: bytes, block: int) -> None:
        """Bring a reserved content back into a block that was given out for it."""
        self._swaps.back.append((self._slot_of[content], block))

    def take_swaps(self) -> Swaps:
        """The swaps of the plan that is being made; the next call returns those after it."""
        swaps, self._swaps = self._swaps, Swaps([], [])
        self._named.clear()
        return swaps

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless every slot is either empty or of one content."""
        if sorted([*self._empty, *self._slot_of.values()]) != list(range(self.num_slots)):
            raise IntegrityError("a slot of the host is neither empty nor in use, or both")
        if not self._named <= self._slot_of.keys():
            raise IntegrityError("a content was dropped although a plan names its slot")
