"""A heap whose members change their keys."""

from hypothesis import example, given
from hypothesis import strategies as st

from scheduler_svc.core.lazy_heap import LazyHeap

EVENTS = st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 3)), max_size=60)


@given(EVENTS)
@example([(0, 0), (1, 0), (2, 0), (2, None), (1, None)])
def test_the_first_is_that_of_the_lowest_key(events: list[tuple[int, int | None]]) -> None:
    heap: LazyHeap[int] = LazyHeap()
    keys: dict[int, tuple[int, int]] = {}
    for member, key in events:
        if key is None:
            heap.leave(member)
            keys.pop(member, None)
        else:
            heap.enter(member, (key, member))
            keys[member] = (key, member)
        assert len(heap) == len(keys)
        assert heap.key_of(member) == keys.get(member)
        assert (member in heap) == (member in keys)
        assert heap.first() == min(keys, key=keys.__getitem__, default=None)
        even = [each for each in keys if each % 2 == 0]
        assert heap.first(lambda each: each % 2 == 0) == min(even, key=keys.__getitem__, default=None)
        assert len(heap._heap) <= 2 * len(keys)
