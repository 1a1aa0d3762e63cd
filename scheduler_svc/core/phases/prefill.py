"""Prefills: the known tokens of a sequence are computed in chunks, as large as budget and blocks allow."""

from collections.abc import Iterable

from scheduler_svc.core.capabilities import (
    beams,
    embeddings,
    partial_blocks,
    prompt_scores,
    samples,
    whole_images,
)
from scheduler_svc.core.images import images_between
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.phases.preempt import grow
from scheduler_svc.core.request import Pooling, Request
from scheduler_svc.core.sequence import Sequence, State
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def prefills(state: SchedulerState) -> Iterable[Sequence]:
    """The running prefills, the most urgent first, in the order that the policy wants."""
    running = [sequence for sequence in state.batch.running if sequence.state is State.PREFILL]
    running.sort(key=state.urgency)
    running = state.policy.prefills(running)
    if state.shares.contended:  # the policy orders those of one user
        running.sort(key=lambda sequence: state.urgency(sequence)[:2])
    return running


def add_chunk(state: SchedulerState, step: StepBuilder, sequence: Sequence) -> None:
    """Add a row with the next chunk of a prefill, if there is room for one.

    With its last chunk the sequence begins to decode, and samples its next token, or completes its vector.
    Until its grammar has been compiled, and the step has room for its log probabilities or its vector, its
    last token is left out.
    """
    if not step.budget or sequence.state is not State.PREFILL:  # it may have been preempted meanwhile
        return
    start, group = sequence.planned, sequence.group
    fork_at = samples.fork_before(state.limits, group) if group.held else 0
    end = _end(state, sequence, fork_at)
    count = _count(state, step, sequence, end) if end > start else 0
    if not count:
        return
    if fork_at and start == fork_at:
        samples.fork_now(state, sequence)
    if state.limits.recurrent:
        partial_blocks.keep_message(state, step, sequence, start)
    _add_row(state, step, sequence, count)


def _end(state: SchedulerState, sequence: Sequence, fork_at: int) -> int:
    """Position before which the next chunk ends, however much room the step has. It is where the chunk would
    start if nothing can be computed now. `fork_at`: see `samples.fork_before`."""
    group, start, end = sequence.group, sequence.planned, len(sequence.tokens)
    if not state.batch.grammars.ready(group.request.grammar):
        end -= 1
        if start == end:
            return start
    if sequence.sight:  # until the worker has seen its images
        end = min((end, *(image.position for image in images_between(group.request.images, start, end))))
        if group.held:  # who forks from it computes the prompt's last token
            end = min(end, len(group.request.prompt) - 1)
        if end <= start:
            return start
    if start < fork_at:
        end = min(end, fork_at)
    elif start == fork_at and group.request.scores_prompt and sequence.computed < start:
        return start  # a sample that finds no room computes the prompt: it must know what has been reported
    return partial_blocks.chunk_end(state, sequence, start, end) if state.limits.recurrent else end


def _count(state: SchedulerState, step: StepBuilder, sequence: Sequence, end: int) -> int:
    """How many of the next positions, before `end`, the step has room for: in its budget, in blocks, and in
    its result."""
    request, start = sequence.group.request, sequence.planned
    count = min(end - start, step.budget)
    whole = state.limits.whole_images and bool(request.images)
    if whole:
        count = whole_images.most(state, step, request.images, start, end, count)
    if request.scores_prompt:
        count = prompt_scores.most(step, sequence, start, count)
    if request.pooling is Pooling.ALL:
        count = min(count, embeddings.most(step, state.limits))
    count = _room(state, step, sequence, start, count, whole)
    if whole:
        count = whole_images.up_to_images(request.images, start, end, count)
    if count and start + count == len(sequence.tokens):
        wanted = _reported_at_the_end(request, state.limits)
        if wanted and not step.may_report(wanted):
            count -= 1
    return count


def _reported_at_the_end(request: Request, limits: WorkerLimits) -> int:
    """Alternatives that the row with a sequence's last token reports, or that its vector counts as."""
    if request.pooling and request.pooling is not Pooling.ALL:
        return embeddings.counts_as(request.pooling, limits)
    return request.alternatives


def _add_row(state: SchedulerState, step: StepBuilder, sequence: Sequence, count: int) -> None:
    """Add the row with the next `count` positions, and what is due with it."""
    group, start = sequence.group, sequence.planned
    pooling = group.request.pooling
    sequence.planned = start + count
    last = sequence.planned == len(sequence.tokens)
    if last:
        sequence.move(State.DECODE)
    if pooling is Pooling.ALL:
        embeddings.bring_with_next_row(step, state.limits, count)
    elif pooling and last:
        embeddings.complete_with_next_row(step)
    if group.beam_round is not None:
        beams.give_tokens(step, sequence)
    state.shares.computes(sequence, count)
    step.add_chunk(sequence, start, count, samples=last and not pooling)
    if group.request.scores_prompt:
        prompt_scores.report(step, sequence, start, count)


def _room(
    state: SchedulerState, step: StepBuilder, sequence: Sequence, start: int, count: int, whole: bool
) -> int:
    """How many of `count` positions from `start` on have blocks, once the table has grown for them.

    `whole`: fewer of them may be of no use.
    """
    table, limits = sequence.table, state.limits
    assert table is not None
    missing = limits.blocks_for(start + count) - len(table.blocks)
    if missing <= 0:
        return count
    # Only a sequence that could not go on at all takes blocks from another, and not if blocks of its own
    # will soon be outside its window.
    may_preempt = (whole or start == table.room) and not (limits.window and sequence.computed < start)
    grow(state, step, sequence, missing, may_preempt)
    return min(count, table.room - start)
