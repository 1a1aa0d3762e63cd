"""What is left of plans whose beginnings nobody has seen."""

from ops.replay.cut import Cutter
from proto.arrays import pack, unpack
from proto.worker_pb2 import Copies, NewGrammar, NewSlot, Rows, StepPlan, WorkerReady

WORKER = WorkerReady(num_blocks=64, block_size=4, max_slots=8, max_step_tokens=6, host_blocks=8)


def rows(*some: tuple[int, int, int, int]) -> Rows:
    slots, starts, counts, samples = zip(*some, strict=True)
    return Rows(slots=pack(slots), starts=pack(starts), counts=pack(counts), samples=bytes(samples))


def new(slot: int, tokens: int, blocks: list[int], **fields: int) -> NewSlot:
    return NewSlot(slot=slot, tokens=pack([7] * tokens), block_ids=pack(blocks), **fields)


def appends(plan: StepPlan, *pairs: tuple[int, int]) -> StepPlan:
    plan.table_appends.slots, plan.table_appends.blocks = map(pack, zip(*pairs, strict=True))
    return plan


def numbers(packed: bytes) -> list[int]:
    return unpack(packed).tolist()


def test_rows_of_unknown_slots_are_left_out_with_their_drafts() -> None:
    cutter = Cutter(WORKER, 0)
    plan = StepPlan(
        step=40,
        freed_slots=pack([5]),
        new_slots=[new(1, 3, [])],
        rows=rows((0, 9, 3, 3), (1, 0, 3, 1), (2, 8, 1, 1)),
        draft_tokens=pack([11, 12]),
    )
    cut = cutter.cut(appends(plan, (0, 20), (1, 21)))
    assert (cut.rows, cut.all_rows, cut.before) == ([1], 3, [])
    assert cut.plan.step == 1
    assert numbers(cut.plan.rows.slots) == [1]
    assert not cut.plan.freed_slots
    assert not cut.plan.draft_tokens
    assert numbers(cut.plan.table_appends.blocks) == [21]
    later = cutter.cut(StepPlan(step=41, freed_slots=pack([1, 2])))
    assert (later.plan.step, numbers(later.plan.freed_slots)) == (2, [1])


def test_what_was_in_the_cache_is_computed_before() -> None:
    cutter = Cutter(WORKER, 0)
    grammar = NewGrammar(number=3)
    plan = StepPlan(
        step=40, new_grammars=[grammar], new_slots=[new(2, 11, [30, 31], grammar=3)], rows=rows((2, 8, 3, 1))
    )
    cut = cutter.cut(appends(plan, (2, 32)))
    first, second = cut.before
    assert (first.step, second.step, cut.plan.step) == (1, 2, 3)
    assert [new.slot for new in first.new_slots] == [2]
    assert list(first.new_grammars) == [grammar]
    assert not cut.plan.new_grammars
    spans = [(numbers(one.rows.starts), numbers(one.rows.counts)) for one in cut.before]
    assert spans == [([0], [6]), ([6], [2])]
    assert numbers(cut.plan.freed_slots) == [2]
    assert [new.slot for new in cut.plan.new_slots] == [2]
    # Now these blocks are known, and so is the third.
    again = cutter.cut(StepPlan(step=41, new_slots=[new(3, 13, [30, 31, 32])], rows=rows((3, 12, 1, 1))))
    assert again.before == []


def test_a_partial_block_is_copied_if_it_is_known_and_else_computed_as_far_as_it_was() -> None:
    """Eleven tokens begin with one full block and a copy of one that has three tokens."""
    copies = Copies(sources=pack([40]), targets=pack([31]))
    plan = StepPlan(step=40, new_slots=[new(2, 11, [30, 31])], copies=copies, rows=rows((2, 7, 4, 1)))
    plan = appends(plan, (2, 32))
    unknown = Cutter(WORKER, 0)
    unknown.cut(StepPlan(step=39, new_slots=[new(1, 4, [31])], rows=rows((1, 0, 4, 1))))
    cut = unknown.cut(plan)
    spans = [(numbers(one.rows.starts), numbers(one.rows.counts)) for one in cut.before]
    assert spans == [([0], [6]), ([6], [1])]
    assert not cut.plan.copies.targets
    known = Cutter(WORKER, 0)
    written = appends(StepPlan(step=39, new_slots=[new(1, 7, [])], rows=rows((1, 0, 7, 1))), (1, 30), (1, 40))
    known.cut(written)
    cut = known.cut(plan)
    assert (cut.before, numbers(cut.plan.copies.sources)) == ([], [40])
    # Without a row nobody knows how much is to be computed.
    cut = Cutter(WORKER, 0).cut(StepPlan(step=40, new_slots=plan.new_slots, copies=copies))
    assert (cut.before, list(cut.plan.new_slots)) == ([], [])


def test_a_block_that_someone_unknown_has_written_is_not_known() -> None:
    cutter = Cutter(WORKER, 0)
    cutter.cut(appends(StepPlan(step=1, new_slots=[new(1, 4, [])], rows=rows((1, 0, 4, 1))), (1, 21)))
    cutter.cut(appends(StepPlan(step=2, freed_slots=pack([1]), rows=rows((6, 0, 4, 1))), (6, 21)))
    cut = cutter.cut(StepPlan(step=3, new_slots=[new(2, 5, [21])], rows=rows((2, 4, 1, 1))))
    assert len(cut.before) == 1


def test_a_fork_of_someone_unknown_is_left_out() -> None:
    cutter = Cutter(WORKER, 0)
    plan = StepPlan(
        step=1,
        new_slots=[new(1, 1, [], forked_from=6, forked_tokens=4), new(2, 1, [9], grammar=5)],
        rows=rows((1, 4, 1, 1), (2, 4, 1, 1)),
    )
    assert cutter.cut(plan).rows == []


def test_behind_a_window_what_was_cached_is_left_out() -> None:
    windowed = WorkerReady()
    windowed.CopyFrom(WORKER)
    windowed.window = 8
    cut = Cutter(windowed, 0).cut(StepPlan(step=1, new_slots=[new(1, 5, [3])], rows=rows((1, 4, 1, 1))))
    assert (cut.rows, cut.before) == ([], [])


def test_blocks_move_to_the_host_and_back_if_they_are_known() -> None:
    cutter = Cutter(WORKER, 8)
    cutter.cut(appends(StepPlan(step=1, new_slots=[new(1, 4, [])], rows=rows((1, 0, 4, 1))), (1, 21)))
    plan = StepPlan(step=2, freed_slots=pack([1]))
    plan.swap_out.blocks, plan.swap_out.host_slots = pack([21, 40]), pack([0, 1])
    cut = cutter.cut(plan)
    assert numbers(cut.plan.swap_out.blocks) == [21]
    plan = StepPlan(step=3, new_slots=[new(2, 9, [50, 51])], rows=rows((2, 8, 1, 1)))
    plan.swap_in.host_slots, plan.swap_in.blocks = pack([0, 1]), pack([50, 51])
    cut = cutter.cut(plan)
    assert numbers(cut.plan.swap_in.blocks) == [50]
    (before,) = cut.before
    assert numbers(before.rows.starts) == [4]


def test_rows_that_report_prompts_keep_their_places() -> None:
    cutter = Cutter(WORKER, 0)
    plan = StepPlan(step=1, new_slots=[new(1, 4, [])], rows=rows((6, 0, 2, 0), (1, 0, 4, 1)))
    plan.prompt_rows.rows, plan.prompt_rows.firsts, plan.prompt_rows.counts = map(
        pack, ([0, 1], [1, 1], [1, 3])
    )
    cut = cutter.cut(appends(plan, (1, 21)))
    assert numbers(cut.plan.prompt_rows.rows) == [0]
    assert numbers(cut.plan.prompt_rows.counts) == [3]
