"""Several samples of one prompt: the first sequence computes it, and the others fork from that one.

Each sample computes the prompt's last token again, to draw its own first token from the result. A recurrent
worker has the state before that token no more once it has been computed. There the first sequence computes it
in a row of its own, and the others fork in the same step, before the rows.
"""

from scheduler_svc.core.limits import WorkerLimits
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
    if leader.computed >= len(leader.group.request.prompt):
        fork_now(state, leader)


def fork_now(state: SchedulerState, leader: Sequence) -> None:
    """Let the held sequences fork in the step that is planned now or next."""
    group = leader.group
    for sibling in group.held:
        sibling.move(State.FORK)
        state.forks.append(Fork(sibling, leader, len(group.request.prompt) - 1))
    group.held.clear()


def fork_before(limits: WorkerLimits, group: SequenceGroup) -> int:
    """Position that the leader must not compute before the held sequences fork from it. 0: there is none."""
    last = len(group.request.prompt) - 1
    return last if limits.recurrent and last % limits.block_size else 0


def needs_images(sequence: Sequence) -> bool:
    """Whether a sequence that begins with what is cached, or one that forks from it, computes tokens of the
    prompt's images."""
    request, begin = sequence.group.request, sequence.planned
    if sequence.group.held:
        begin = min(begin, len(request.prompt) - 1)
    return request.images[-1].end > begin
