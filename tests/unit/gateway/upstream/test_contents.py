"""Which tokens are in which block."""

from gateway.upstream.contents import Contents
from proto.arrays import pack
from proto.inside_pb2 import Look, WorkerChange


def look(**fields: object) -> tuple[Look, WorkerChange]:
    found = Look(scheduler="s", lost=fields.get("lost", ()))  # type: ignore[arg-type]
    return found, found.workers.add(number=1)


def begun() -> Contents:
    """A sequence of ten tokens in blocks of four, of which nine have been computed."""
    contents = Contents()
    found, worker = look()
    worker.limits.block_size = 4
    worker.sequences.add(
        number=1,
        request_id="r",
        tenant="north",
        computed=9,
        added_blocks=pack([5, 6, 7]),
        added_tokens=pack(range(10)),
    )
    contents.note(found)
    return contents


def tokens(contents: Contents, block: int) -> list[int] | None:
    found = contents.of("s", 1, block)
    return None if found is None else list(found.tokens)


def test_a_block_holds_what_is_computed_in_it() -> None:
    contents = begun()
    assert [tokens(contents, block) for block in (5, 6, 7, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8], None]
    found = contents.of("s", 1, 6)
    assert found is not None
    assert (found.request_id, found.tenant, found.start) == ("r", "north", 4)
    assert contents.of("other", 1, 5) is None


def test_tokens_that_come_are_added() -> None:
    contents = begun()
    found, worker = look()
    worker.sequences.add(number=1, computed=11, kept_blocks=3, kept_tokens=10, added_tokens=pack([10, 11]))
    contents.note(found)
    assert tokens(contents, 7) == [8, 9, 10]


def test_full_blocks_are_known_until_they_are_given_up() -> None:
    contents = begun()
    found, worker = look()
    worker.gone.append(1)
    worker.blocks, worker.states = pack([5, 6, 7]), pack([1, 1, 0])
    contents.note(found)
    assert [tokens(contents, block) for block in (5, 6, 7)] == [[0, 1, 2, 3], [4, 5, 6, 7], None]
    found, worker = look()
    worker.evicted = pack([6])
    contents.note(found)
    assert [tokens(contents, block) for block in (5, 6)] == [[0, 1, 2, 3], None]
    found, worker = look()
    worker.blocks, worker.states = pack([5]), pack([0])
    contents.note(found)
    assert tokens(contents, 5) is None


def test_a_preempted_sequence_leaves_its_blocks() -> None:
    contents = begun()
    found, worker = look()
    worker.sequences.add(number=1, kept_tokens=10)
    contents.note(found)
    assert [tokens(contents, block) for block in (5, 6, 7)] == [[0, 1, 2, 3], [4, 5, 6, 7], None]


def test_blocks_behind_the_window_are_not_the_sequence_s() -> None:
    contents = begun()
    found, worker = look()
    worker.sequences.add(number=1, computed=9, kept_blocks=3, kept_tokens=10, dropped_blocks=1)
    contents.note(found)
    assert [tokens(contents, block) for block in (5, 6)] == [None, [4, 5, 6, 7]]


def test_a_lost_worker_and_a_lost_scheduler_are_forgotten() -> None:
    contents = begun()
    contents.note(Look(scheduler="s", lost=[1]))
    assert tokens(contents, 5) is None
    contents = begun()
    contents.forget("s")
    assert tokens(contents, 5) is None
