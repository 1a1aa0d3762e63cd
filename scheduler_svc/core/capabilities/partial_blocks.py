"""Partial blocks: named although a text fills only their beginning, for whoever goes on there.

    prompt       system ... ■ question ■ assistant:           ■ a stop token, with which a message ends
    named                    a          b
    answer       system ... ■ question ■ assistant: answer ■
    named                                                   c
    next turn    begins with c, or with b if it repeats the answer otherwise; another chat begins with a

Only a recurrent worker has them. Its blocks are long, because each has a state as well (`kv_sizes.py`), and a
state is there only after the newest token of a block. With full blocks alone every turn of a chat would
compute up to a block of its past again.

When an answer ends with a stop token, its last block gets a name. In a prompt a chunk ends behind the first
message and behind the last one. The step that goes on there copies the block first, and the copy gets the
name. It is worth that only if the tokens take long to compute. Who begins with a partial block copies it, and
goes on in the copy. So a block that has a name never changes.

The name is made as that of a full block. It is looked for at stop tokens only: before one, where the state is
when an answer ends; and behind it, where it is if the stop token has been computed, too.
"""

from collections.abc import Sequence as Series
from itertools import takewhile

from scheduler_svc.core.batch import PartialBlock
from scheduler_svc.core.blocks import NamedBlock
from scheduler_svc.core.flight import Flight
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import StepResult
from scheduler_svc.core.prefix import partial_names, root
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder

STEPS = 4
"""How many steps that only decode the tokens of a partial block must be worth, so that a chunk ends there:
that costs one."""


def possible(limits: WorkerLimits, sequence: Sequence, full: int) -> list[PartialBlock]:
    """The partial blocks that a sequence could begin with behind `full` cached blocks; the longest first."""
    size, stops = limits.block_size, sequence.group.request.stop_token_ids
    if not (limits.recurrent and stops):
        return []
    tokens, first = sequence.tokens, full * size
    last = min(first + size, len(tokens), sequence.group.most_cached + 1) - 1
    if sequence.group.held:  # which would fork from the copy in the step that makes it
        last = min(last, len(sequence.group.request.prompt) - 2)
    ends = [end for end in range(first + 1, last + 1) if tokens[end] in stops or tokens[end - 1] in stops]
    if not ends:
        return []
    return [PartialBlock(*each) for each in zip(_names(limits, sequence, ends), ends, strict=True)][::-1]


def defer(state: SchedulerState, sequence: Sequence, blocks: Series[PartialBlock]) -> bool:
    """Whether another sequence is to make a longer one of the possible `blocks` than any that is cached: then
    this one waits for it."""
    missing = takewhile(lambda each: not state.batch.pool.knows(each.name), blocks)
    return state.unfinished.defer_partial(sequence, (each.name for each in missing))


def note_messages(state: SchedulerState, sequence: Sequence) -> None:
    """Note where the first and the last message end in what is known of a sequence, which has just got its
    slot. Others that begin with these wait from now on."""
    tokens, stops = sequence.tokens, sequence.group.request.stop_token_ids
    places = range(len(tokens) - 1)
    first = next((place for place in places if tokens[place] in stops), None)
    if first is None:
        sequence.messages = ()
    else:
        last = next(place for place in reversed(places) if tokens[place] in stops)
        sequence.messages = (first + 1, last + 1)
    for place in dict.fromkeys(sequence.messages):
        if place > sequence.planned and (name := _wanted(state, sequence, place)) is not None:
            state.unfinished.begin_partial(sequence, name)


def chunk_end(state: SchedulerState, sequence: Sequence, start: int, end: int) -> int:
    """Where a chunk from `start` to `end` is to end, so that its last block can be named; or else `end`."""
    for place in sequence.messages:
        if start < place < end:
            if _wanted(state, sequence, place):
                return place
            _give_up(state, sequence, place)
    return end


def keep_message(state: SchedulerState, step: StepBuilder, sequence: Sequence, start: int) -> None:
    """If a message ends before `start`, where the step goes on with the sequence: copy its last block."""
    batch, size = state.batch, state.limits.block_size
    if start not in sequence.messages:
        return
    name = None if batch.pool.free_blocks <= batch.reserved() else _wanted(state, sequence, start)
    if name is None:
        _give_up(state, sequence, start)
    else:
        assert sequence.table is not None
        source, (copy,) = sequence.table.blocks[start // size], batch.pool.allocate(1)
        batch.pool.share([source])
        step.copy_blocks([source], [copy])
        step.named_blocks.append(NamedBlock(copy, name))


def keep_answer(state: SchedulerState, sequence: Sequence) -> None:
    """Name the last block of an answer that ends with its newest token, a stop token.

    If the row is in flight that computes this token, the block waits for its result.
    """
    end, table, pool = sequence.planned, sequence.table, state.batch.pool
    # What is computed behind the stop token, if anything, is not known.
    if end > len(sequence.tokens) or (name := _wanted(state, sequence, end)) is None:
        return
    assert table is not None
    named = NamedBlock(table.blocks[end // state.limits.block_size], name)
    if end == sequence.computed:
        pool.cache(*named)
    else:
        pool.share([named.block])
        state.ended_answers[sequence] = named


def settle_answer(state: SchedulerState, sequence: Sequence, failed: bool = False) -> None:
    """A row of a sequence that has ended was computed, or has failed: name the block that waits for it."""
    if (named := state.ended_answers.pop(sequence, None)) is not None:
        _settle(state, named, failed)


def settle_messages(state: SchedulerState, flight: Flight, result: StepResult) -> None:
    """A plan has been made: name the copies that it made, unless a row failed, which may be one before it."""
    for named in flight.named_blocks:
        _settle(state, named, bool(result.errors))
        state.unfinished.settled(named.content)


def _settle(state: SchedulerState, named: NamedBlock, failed: bool) -> None:
    if not failed:
        state.batch.pool.cache(*named)
    state.batch.pool.release([named.block])


def _wanted(state: SchedulerState, sequence: Sequence, end: int) -> bytes | None:
    """The name of the block that the first `end` tokens fill in part. None: it has it already, is not worth
    it, or is full."""
    tokens = end % state.limits.block_size
    if not tokens or state.prefill_budget.steps_for(tokens) < STEPS:
        return None
    (name,) = _names(state.limits, sequence, [end])
    return None if state.batch.pool.knows(name) else name


def _give_up(state: SchedulerState, sequence: Sequence, end: int) -> None:
    """The block that the first `end` tokens fill in part is not made by this sequence."""
    if end % state.limits.block_size:
        (name,) = _names(state.limits, sequence, [end])
        state.unfinished.settled(name)


def _names(limits: WorkerLimits, sequence: Sequence, ends: list[int]) -> list[bytes]:
    """See `partial_names`."""
    request = sequence.group.request
    start = root(request.salt, request.adapter)
    return partial_names(sequence.chain, start, sequence.tokens, ends, limits.block_size, request.images)
