"""The result of a step: from tensors to a `StepResult`."""

from collections.abc import Container, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s, packed_float32s, packed_int32s
from gpu_worker.kernels.sampling import Candidates, Logprobs, Sampled
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.step.plan import Plan
from proto.worker_pb2 import RowError, StepResult

NOT_FINITE = "the model's logits are not finite"

ForcedTokens = Mapping[int, tuple[int, Sequence[int]]]
"""By row of the plan, a run of tokens that a grammar forces: its first position, and the tokens."""


def failed_rows(sampled: Sampled, samples: SamplePositions, kept: Int32s) -> list[int]:
    """Indices in the plan of the rows whose logits were not finite, ascending. Waits for the device."""
    finite = sampled.finite.cpu().numpy()
    if finite.all():
        return []
    wrong = ~finite & samples.among(kept)
    return sorted(set(np.repeat(samples.rows, samples.counts)[wrong].tolist()))


def result_of(
    plan: Plan, sampled: Sampled | None, samples: SamplePositions, kept: Int32s, errors: Mapping[int, str]
) -> StepResult:
    """The result of a plan's step.

    `kept` [rows that sample]: tokens that each row keeps. `errors`: error messages by row of the plan.
    """
    result = StepResult(step=plan.message.step)
    ends = np.cumsum(plan.row_samples, dtype=np.int32)
    tokens = np.full(ends[-1] if len(ends) else 0, -1, np.int32)
    if sampled is not None:
        good = samples.among(kept)
        if errors:
            good &= ~np.isin(np.repeat(samples.rows, samples.counts), list(errors))
        # Index in the result of each sampled token.
        entries = np.repeat((ends - plan.row_samples)[samples.rows] - samples.firsts, samples.counts)
        entries += np.arange(len(entries))
        tokens[entries[good]] = sampled.tokens.cpu().numpy()[good]
        if sampled.logprobs is not None:
            _add_logprobs(result, sampled.logprobs, entries, good)
        if sampled.candidates is not None:
            _add_candidates(result, sampled.candidates, entries)
    for row in sorted(errors):
        result.errors.append(RowError(row=row, message=errors[row]))
    result.tokens = packed_int32s(tokens)
    return result


def _add_logprobs(
    result: StepResult, found: Logprobs, entries: NDArray[np.integer], good: NDArray[np.bool_]
) -> None:
    """`entries` [tokens]: index in the result of each sampled token. `good` [tokens]: tokens to report."""
    reported = good[found.rows]
    counts = found.top_counts[reported]
    # Each token asks for its own number of alternatives: each row of the table is cut to that number.
    within = np.arange(found.top.shape[1]) < counts[:, None]
    message = result.logprobs
    message.entries = packed_int32s(entries[found.rows][reported])
    message.logprobs = packed_float32s(found.chosen.cpu().numpy()[reported])
    message.top_counts = packed_int32s(counts)
    message.top.tokens = packed_int32s(found.top_tokens.cpu().numpy()[reported][within])
    message.top.logprobs = packed_float32s(found.top.cpu().numpy()[reported][within])


def _add_candidates(result: StepResult, found: Candidates, entries: NDArray[np.int32]) -> None:
    """`entries`: index in the result of each row that samples."""
    within = np.arange(found.tokens.shape[1]) < found.counts[:, None]
    message = result.candidates
    message.entries = packed_int32s(entries[found.rows])
    message.counts = packed_int32s(found.counts)
    message.top.tokens = packed_int32s(found.tokens.cpu().numpy()[within])
    message.top.logprobs = packed_float32s(found.logprobs.cpu().numpy()[within])


def add_forced(result: StepResult, forced: ForcedTokens, errors: Container[int]) -> None:
    """Add the runs of rows that are not in `errors` to a result."""
    rows = sorted(row for row in forced if row not in errors)
    runs = [forced[row] for row in rows]
    message = result.forced
    message.runs.rows = packed_int32s(np.array(rows))
    message.runs.starts = packed_int32s(np.array([start for start, _ in runs]))
    message.runs.counts = packed_int32s(np.array([len(tokens) for _, tokens in runs]))
    message.tokens = packed_int32s(np.array([token for _, tokens in runs for token in tokens]))
