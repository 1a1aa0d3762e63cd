"""A plan in flight, and whether a result answers it."""

from collections.abc import Sequence as Series
from dataclasses import dataclass

from scheduler_svc.core.blocks import NamedBlock
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.request import Pooling
from scheduler_svc.core.sequence import Sequence

REJECTED = -1
"""In a result: stands for a token behind a draft that did not hold."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A plan that the worker has not answered yet."""

    plan: StepPlan
    sequences: list[Sequence]
    """The sequence of each row."""
    epochs: list[int]
    """The sequences' epochs when they were planned. A row's result counts only if its epoch is the same."""
    embedded: Series[int] = ()
    """Rows that complete vectors."""
    searches: bool = False
    """Whether rows may be beams."""
    named_blocks: Series[NamedBlock] = ()
    """Blocks that get names when the plan has been made."""

    def check(self, result: StepResult, vocab_size: int, embedding_size: int) -> None:
        """Raise `WorkerFault` unless the result answers this plan. The sizes are the model's."""
        plan, step = self.plan, result.step
        if step != plan.step:
            raise WorkerFault(f"a result of step {step} where step {plan.step} was due")
        tokens, due = result.tokens, sum(plan.rows.samples)
        if len(tokens) != due:
            raise WorkerFault(f"step {step}: {len(tokens)} tokens where {due} were due")
        if any(row >= len(self.sequences) for row in result.errors):
            raise WorkerFault(f"step {step}: an error of a row that was not planned")
        if self.embedded:
            self._check_vectors(result, embedding_size)
        if plan.prompt_rows.rows:
            self._check_scores(result)
        if result.errors or plan.draft_tokens:
            tokens = _accepted(result, plan.rows.samples)
        if tokens and not (min(tokens) >= 0 and max(tokens) < vocab_size):
            raise WorkerFault(f"step {step}: a token id outside the vocabulary")
        if self.searches:
            self._check_candidates(result, vocab_size)
        for row, (start, run) in result.forced.items():
            if row >= len(self.sequences) or start < 1 or not all(0 <= token < vocab_size for token in run):
                raise WorkerFault(f"step {step}: forced tokens that cannot be")

    def _check_vectors(self, result: StepResult, size: int) -> None:
        """Raise `WorkerFault` unless the rows that complete vectors have done so. `size`: numbers of each."""
        for row in self.embedded:
            if row in result.errors:
                continue
            if (found := result.embeddings.get(row)) is None:
                raise WorkerFault(f"step {result.step}: an embedding is missing")
            due = self.plan.rows.counts[row]
            each = self.sequences[row].group.request.pooling is Pooling.ALL
            if each and len(found) != 4 * size * due:
                raise WorkerFault(f"step {result.step}: {len(found)} bytes where {due} vectors were due")

    def _check_scores(self, result: StepResult) -> None:
        """Raise `WorkerFault` unless every row that reports log probabilities of its prompt has done so."""
        for row, _, count in zip(*self.plan.prompt_rows, strict=True):
            found = result.prompt_scores.get(row)
            if row not in result.errors and (found is None or found.length != count):
                raise WorkerFault(f"step {result.step}: log probabilities of a prompt are missing")

    def _check_candidates(self, result: StepResult, vocab_size: int) -> None:
        """Raise `WorkerFault` unless every beam has the candidates that it needs, each another token."""
        end = 0
        for row, (sequence, samples) in enumerate(zip(self.sequences, self.plan.rows.samples, strict=True)):
            end += samples
            needed = sequence.group.request.candidates if samples and row not in result.errors else 0
            if not needed:
                continue
            found = result.candidates.get(end - 1, ())
            good = {token for token, score in found if 0 <= token < vocab_size and score < 1}  # NaN is not
            if not len(good) == len(found) == needed:
                raise WorkerFault(f"step {result.step}: {len(good)} candidates where {needed} were due")


def accepted(run: Series[int]) -> int:
    """How many of the tokens that one row sampled count: those before the first `REJECTED`."""
    return run.index(REJECTED) if REJECTED in run else len(run)


def _accepted(result: StepResult, row_samples: Series[int]) -> list[int]:
    """The tokens that count: none of rows that failed, nor those behind drafts that did not hold."""
    found, begin = list[int](), 0
    for row, samples in enumerate(row_samples):
        if row not in result.errors:
            run = result.tokens[begin : begin + samples]
            found += run[: max(1, accepted(run))]  # the first must be there
        begin += samples
    return found
