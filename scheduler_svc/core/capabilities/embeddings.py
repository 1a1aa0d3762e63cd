"""Texts that are embedded or classified: a row that reaches a text's end completes its vector, and samples
nothing.

If each token has a vector, every row brings those of its tokens. They are kept until the text is complete. A
step brings as many vectors as a message holds, of tokens and of whole texts, beside log probabilities: see
`alternatives.py`.
"""

from scheduler_svc.core.alternatives import MOST
from scheduler_svc.core.flight import Flight
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import Outcome, StepResult
from scheduler_svc.core.request import Pooling
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.step_builder import StepBuilder


def most(step: StepBuilder, limits: WorkerLimits) -> int:
    """Tokens that may bring their vectors with this step."""
    return max(0, MOST - step.alternatives) * 2 // max(1, limits.embedding_size)


def counts_as(pooling: Pooling, limits: WorkerLimits) -> int:
    """Alternatives that the one vector of a whole text counts as."""
    size = limits.num_labels if pooling is Pooling.CLASSIFY else limits.embedding_size
    return (size + 1) // 2


def fits(step: StepBuilder, limits: WorkerLimits, sequence: Sequence) -> bool:
    """Whether the whole text may be computed in this step, its vectors included."""
    tokens, pooling = len(sequence.tokens), sequence.group.request.pooling
    if tokens > step.budget:
        return False
    if pooling is Pooling.ALL:
        return tokens <= most(step, limits)
    return step.has_room(counts_as(pooling, limits))


def complete_with_next_row(step: StepBuilder) -> None:
    """Note that the row that is added next completes the vector of a text."""
    step.embedded.append(len(step.sequences))


def bring_with_next_row(step: StepBuilder, limits: WorkerLimits, count: int) -> None:
    """Note that the row that is added next, of `count` tokens, completes the vectors of these."""
    complete_with_next_row(step)
    step.alternatives += -(-count * limits.embedding_size // 2)


def deliver(state: SchedulerState, flight: Flight, result: StepResult, outcome: Outcome) -> None:
    """End the sequences whose embeddings a result has, and add these to the outcome."""
    for row in flight.embedded:
        sequence = flight.sequences[row]
        if sequence.epoch != flight.epochs[row]:
            continue
        found, group = result.embeddings[row], sequence.group
        if group.request.pooling is Pooling.ALL:
            if not flight.plan.rows.starts[row] or group.vectors is None:  # it has begun, perhaps once more
                group.vectors = []
            group.vectors.append(found)
            if sequence.computed < len(sequence.tokens):
                continue
            found, group.vectors = b"".join(group.vectors), None
        outcome.embedded.append((group, found))
        state.end(sequence)
