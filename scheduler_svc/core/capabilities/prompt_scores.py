"""Log probabilities of a prompt: rows report them while they compute it, each token's once.

    prompt     a b c d e f g h      the logits of a token tell how likely the token after it was
    scored     a b c d              delivered; of the first token there is none
    cached     a b c                the blocks with which the sequence may begin: the logits of d are needed

What is cached are keys and values; logits are not. So a sequence takes cached blocks only as far as log
probabilities have been delivered, and computes the rest. Its own blocks are cached for others as usual. What
a row in flight would have reported is lost with a preemption and computed again. A group's other samples and
beams begin after the prompt.
"""

from scheduler_svc.core.alternatives import FEW, MOST
from scheduler_svc.core.flight import Flight
from scheduler_svc.core.plan import Outcome, StepResult
from scheduler_svc.core.sequence import Sequence
from scheduler_svc.core.step_builder import StepBuilder


def most(step: StepBuilder, sequence: Sequence, start: int, count: int) -> int:
    """How many of `count` positions from `start` on a row may compute without reporting too much."""
    group = sequence.group
    first = max(group.scored, start + 1)
    # A row that samples after its prompt may have reported more than `MOST`.
    free = max(int(not step.alternatives), (MOST - step.alternatives) // _each(sequence))
    if first + free >= min(len(group.request.prompt), start + count + 1):
        return count
    return first + free - 1 - start


def report(step: StepBuilder, sequence: Sequence, start: int, count: int) -> None:
    """Let the row that was added last, of `count` positions from `start` on, report what is not delivered."""
    group = sequence.group
    first = max(group.scored, start + 1)
    end = min(len(group.request.prompt), start + count + 1)
    if first < end:
        step.report_prompt(first, end - first, (end - first) * _each(sequence))


def _each(sequence: Sequence) -> int:
    """Alternatives that a token of the prompt counts as. Without any a token has its own numbers."""
    return max(FEW, sequence.group.request.prompt_alternatives)


def deliver(flight: Flight, result: StepResult, outcome: Outcome) -> None:
    """Add what the rows have reported to the outcome."""
    for row, first, count in zip(*flight.plan.prompt_rows, strict=True):
        sequence = flight.sequences[row]
        if sequence.epoch == flight.epochs[row]:
            sequence.group.scored = first + count
            outcome.scored.append((sequence.group, result.prompt_scores[row]))
