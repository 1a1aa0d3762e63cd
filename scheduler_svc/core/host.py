"""Host memory behind the block pool: contents that were evicted from the device, and can come back.

    device block ── evicted ──▶ host slot         swap out     of a full, confirmed block
    device block ◀── hit ────── host slot         swap in      into a block that is given out for it

A preempted sequence is not moved. Its full blocks stay in the pool's cache as those of one that ended do, and
go to the host one by one when their memory is really needed; when it comes back, those that are still on the
device are hit, and the others are brought back. So preemption, and prefixes that outlive the device's memory,
are one mechanism.

What is brought back keeps its slot: to evict it again moves nothing. When the slots run out, the content that
was least recently moved is dropped.

A worker runs the swaps of a plan before all else of it, outs before ins, and plans in their order. So an out
reads what earlier plans have written: only confirmed blocks have a name, and nobody writes to a block that is
in no table. An in may read the slot that an out of the same plan writes, but not the other way round: a slot
that a plan names keeps its content until that plan is made. Nor does a plan take back a block into which it
swaps: such a block is held by a sequence that is admitted after all that may preempt.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from scheduler_svc.core.errors import IntegrityError


@dataclass(slots=True)
class Swaps:
    """What one step moves to and from host memory; see `SwapOut` and `SwapIn` in worker.proto."""

    out_blocks: list[int] = field(default_factory=list)
    out_host_slots: list[int] = field(default_factory=list)
    in_host_slots: list[int] = field(default_factory=list)
    in_blocks: list[int] = field(default_factory=list)


class HostPool:
    """Slots 0 to num_slots - 1, each for the content of one block. Every operation takes constant time."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._empty = list(range(num_slots - 1, -1, -1))
        # The order is the order in which contents are dropped.
        self._slot_of: OrderedDict[bytes, int] = OrderedDict()
        self._swaps = Swaps()
        self._named: set[bytes] = set()
        """Contents whose slots the plan in the making names."""

    def __contains__(self, content: bytes) -> bool:
        return content in self._slot_of

    def keep(self, content: bytes, block: int) -> None:
        """The block is about to be given to somebody else: take its content over, if there is a slot."""
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
        self._swaps.out_blocks.append(block)
        self._swaps.out_host_slots.append(slot)

    def reserve(self, content: bytes) -> None:
        """The plan in the making will bring the content back: until then its slot is nobody else's."""
        self._slot_of.move_to_end(content)
        self._named.add(content)

    def bring(self, content: bytes, block: int) -> None:
        """Bring a reserved content back, into a block that was given out for it."""
        self._swaps.in_host_slots.append(self._slot_of[content])
        self._swaps.in_blocks.append(block)

    def take_swaps(self) -> Swaps:
        """What is to move in the plan that is made now; the next one begins."""
        swaps, self._swaps = self._swaps, Swaps()
        self._named.clear()
        return swaps

    def check_integrity(self) -> None:
        """Raise `IntegrityError` unless every slot is either empty or of one content."""
        if sorted([*self._empty, *self._slot_of.values()]) != list(range(self.num_slots)):
            raise IntegrityError("the slots of the host are not those that are empty and those that are not")
        if not self._named <= self._slot_of.keys():
            raise IntegrityError("a content was dropped while a plan names its slot")
