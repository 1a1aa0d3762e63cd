"""Beam search on paged memory: its beams are sequences of one group, which fork and end as it goes on.

    round n     a ── the       b ── a        c ── one          three slots, three tables
    best        a cat, a dog, b fox
    round n+1   a ── cat       b ── fox      c: ends, and forks from a:  a ── dog
                in place       in place      shares a's blocks, gets a copy of the unfilled last one

Which continuations go on is decided by `beam_search.py`. No beam can go on before all beams of its round have
been computed, so a group that searches is not planned ahead. A beam that has reported and is preempted waits
for the next round before it waits for a slot. So every beam that gets a slot brings the round nearer to
its end, and the end comes however small the pool is.
"""

from collections.abc import Sequence as Series

from scheduler_svc.core.beam_round import BeamRound
from scheduler_svc.core.beam_search import Candidate, Continuation, Search
from scheduler_svc.core.plan import Fork, Gain, Outcome
from scheduler_svc.core.request import Finish
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def start(group: SequenceGroup) -> None:
    """Begin the group's search if it asks for one, or begin its round again on another worker."""
    request = group.request
    if request.beams is None:
        return
    if group.beam_round is None:
        longest_output = group.limit - len(request.prompt)
        group.beam_round = BeamRound(Search(request.beams, request.stop_token_ids, longest_output))
    group.beam_round.restart()


def is_parked(beam: Sequence) -> bool:
    """Whether the sequence is a beam that waits for the next round, and not yet for a slot."""
    beam_round = beam.group.beam_round
    return beam_round is not None and beam.index in beam_round.parked


def park(beam: Sequence) -> bool:
    """Note that a beam was preempted. Whether it must wait for the next round before it waits for a slot."""
    beam_round = beam.group.beam_round
    if beam_round is None or beam.index not in beam_round.reported:
        return False
    beam_round.parked.append(beam.index)
    return True


def holds_up_its_round(beam: Sequence) -> bool:
    """Whether a beam has reported, and keeps its slot while another one of its round waits for a slot."""
    group, beam_round = beam.group, beam.group.beam_round
    if beam_round is None or beam.index not in beam_round.reported:
        return False
    return any(
        group.sequences[index].waits and index not in beam_round.reported for index in beam_round.beams
    )


def awaits_round(beam: Sequence) -> bool:
    """Whether a beam has computed all its tokens: the next one is chosen when its round is over."""
    return beam.planned == len(beam.tokens)


def give_tokens(step: StepBuilder, beam: Sequence) -> None:
    """Give the worker the tokens of a beam that were chosen since its last row."""
    step.searches = True
    for token in beam.tokens[beam.given_tokens :]:
        step.give_token(beam.slot, token)
    beam.given_tokens = len(beam.tokens)


def report(beam: Sequence, candidates: Series[Candidate]) -> bool:
    """Take in what may follow a beam. Whether all beams of the round have reported now."""
    if beam.computed != len(beam.tokens):
        return False  # planned before the beam took over from another
    beam_round = beam.group.beam_round
    assert beam_round is not None
    beam_round.reported[beam.index] = candidates
    return len(beam_round.reported) == len(beam_round.beams)


def finish_round(state: SchedulerState, group: SequenceGroup, outcome: Outcome) -> None:
    """All beams of the round have reported: begin the next one, or end the group with its answers."""
    beam_round = group.beam_round
    assert beam_round is not None
    _next_round(state, group, beam_round)
    if beam_round.search.over:
        outcome.gains.extend(_answers(group, beam_round.search))
        state.cancel(group)


def _next_round(state: SchedulerState, group: SequenceGroup, beam_round: BeamRound) -> None:
    """Choose the beams of the next round, and let those fork that have another parent than themselves."""
    parents = [group.sequences[index] for index in beam_round.beams]
    prompt = len(group.request.prompt)
    outputs = [beam.tokens[prompt:] for beam in parents]
    candidates = [beam_round.reported.pop(beam.index) for beam in parents]
    chosen = beam_round.search.advance(outputs, candidates)
    heirs = _heirs(group, parents, chosen)
    beam_round.beams = [beam.index for beam in heirs]
    # Forks come first: they take what their parents know, and the parents are about to know more.
    for beam, (parent, token) in zip(heirs, chosen, strict=True):
        if beam is not parents[parent]:
            _take_over(state, beam, parents[parent], token)
    for beam, (parent, token) in zip(heirs, chosen, strict=True):
        if beam is parents[parent]:
            beam.tokens.append(token)
    for index in beam_round.parked:
        state.waiting.push(group.sequences[index])
    beam_round.parked.clear()


def _heirs(group: SequenceGroup, parents: list[Sequence], chosen: list[Continuation]) -> list[Sequence]:
    """The sequence of each beam of the next round: the parent's own for its best child."""
    staying = {parent for parent, _ in chosen}
    spare = [beam for number, beam in enumerate(parents) if number not in staying]
    heirs = []
    for parent, _ in chosen:
        if parent in staying:
            staying.remove(parent)
            heirs.append(parents[parent])
        else:
            heirs.append(spare.pop() if spare else group.add_sequence())
    return heirs


def _take_over(state: SchedulerState, beam: Sequence, parent: Sequence, token: int) -> None:
    """Let the beam go on where its parent is, with `token`.

    A beam that waits for a slot needs no fork: when it gets one it begins with what is cached then.
    """
    known = len(parent.tokens)
    if beam.table is not None:
        state.batch.leave(beam, State.FORK)
    beam.tokens = parent.tokens[:]
    beam.tokens.append(token)
    beam.chain = parent.chain[: known // state.limits.block_size]
    if beam.state is State.FORK:
        state.forks.append(Fork(beam, parent, known))


def _answers(group: SequenceGroup, search: Search) -> list[Gain]:
    """All tokens of the best answers of a search that is over."""
    request, found = group.request, list[Gain]()
    for index, output in enumerate(search.best(request.n)):
        finish = Finish.STOP if output[-1] in request.stop_token_ids else Finish.LENGTH
        found += [Gain(group, index, token, Finish.NOT_FINISHED, -1) for token in output[:-1]]
        found.append(Gain(group, index, output[-1], finish, -1))
    return found
