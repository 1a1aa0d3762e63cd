"""Several samples of one prompt: the first sequence computes it, and the others fork from that one.

Each sample computes the prompt's last token again, to draw its own first token from the result.
"""

from scheduler_svc.core.plan import Fork
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.core.state import SchedulerState


def submit(state: SchedulerState, group: SequenceGroup) -> None:
    """Queue the group's first sequence, and hold the others until it has computed the prompt."""
    leader, *siblings = group.alive()
    state.waiting.push(leader)
    if any(sequence.dropped_tokens for sequence in group.alive()):  # rolled apart: their prompts now differ
        for sibling in siblings:
            state.waiting.push(sibling)
    else:
        group.held = siblings


def fork_held(state: SchedulerState, leader: Sequence) -> None:
    """Let the held sequences fork in the next step, if their leader has computed the prompt."""
    group = leader.group
    prompt = len(group.request.prompt)
    if leader.computed < prompt:
        return
    for sibling in group.held:
        sibling.move(State.FORK)
        state.forks.append(Fork(sibling, leader, prompt - 1))
    group.held.clear()
