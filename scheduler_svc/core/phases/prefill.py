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
from scheduler_svc.core.phases.preempt import grow
from scheduler_svc.core.request import Pooling
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
    group, start, end = sequence.group, sequence.planned, len(sequence.tokens)
    if not state.batch.grammars.ready(group.request.grammar):
        end -= 1
        if start == end:
            return
    if sequence.sight:  # until the worker has seen its images
        end = min((end, *(image.position for image in images_between(group.request.images, start, end))))
        if end <= start:
            return
    fork_at = samples.fork_before(state.limits, group) if group.held else 0
    if start < fork_at:
        end = min(end, fork_at)
    elif start == fork_at and group.request.scores_prompt and sequence.computed < start:
        return  # a sample that finds no room computes the prompt: it must know what has been reported
    if state.limits.recurrent:
        end = partial_blocks.chunk_end(state, sequence, start, end)
    count = min(end - start, step.budget)
    whole = state.limits.whole_images and bool(group.request.images)
    if whole:
        count = whole_images.most(state, step, group.request.images, start, end, count)
    if group.request.scores_prompt:
        count = prompt_scores.most(step, sequence, start, count)
    each = group.request.pooling is Pooling.ALL
    if each:
        count = min(count, embeddings.most(step, state.limits))
    count = _room(state, step, sequence, start, count, whole)
    if whole:
        count = whole_images.up_to_images(group.request.images, start, end, count)
    if not count:
        return
    wanted = group.request.alternatives
    if group.request.pooling and not each:
        wanted = embeddings.counts_as(group.request.pooling, state.limits)
    if wanted and start + count == len(sequence.tokens) and not step.may_report(wanted):
        count -= 1
        if not count:
            return
    if fork_at and start == fork_at:
        samples.fork_now(state, sequence)
    if state.limits.recurrent:
        partial_blocks.keep_message(state, step, sequence, start)
    sequence.planned = start + count
    sampled = last = sequence.planned == len(sequence.tokens)
    if last:
        sequence.move(State.DECODE)
        if group.request.pooling:
            sampled = False
            if not each:
                embeddings.complete_with_next_row(step)
    if each:
        embeddings.bring_with_next_row(step, state.limits, count)
    if group.beam_round is not None:
        beams.give_tokens(step, sequence)
    state.shares.computes(sequence, count, last)
    step.add_chunk(sequence, start, count, sampled)
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
