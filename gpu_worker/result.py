"""What a step has to say: from the device to the message."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gpu_worker.plan import Plan
from gpu_worker.sampler import Sampled
from proto.worker_pb2 import RowError, StepResult

NOT_FINITE = "the model's logits are not finite"


def failed_rows(sampled: Sampled, rows: NDArray[np.intp]) -> list[int]:
    """Those of the plan's rows for which the model gave no usable logits. Waits for the device."""
    finite = sampled.finite.cpu().numpy()
    return [] if finite.all() else [int(row) for row in rows[~finite]]


def result_of(
    plan: Plan, sampled: Sampled | None, rows: NDArray[np.intp], errors: Mapping[int, str]
) -> StepResult:
    """The answer to a plan.

    `sampled`: of the plan's rows `rows`, ascending; `errors`: what went wrong, by row of the plan.
    """
    result = StepResult(step=plan.step)
    # A row's place in the result: only rows that sample have one.
    entries = np.cumsum(plan.row_samples, dtype=np.int32) - 1
    tokens = np.full(np.count_nonzero(plan.row_samples), -1, "<i4")
    if sampled is not None:
        tokens[entries[rows]] = sampled.tokens.cpu().numpy()
        if sampled.logprobs is not None:
            _add_logprobs(result, sampled, entries[rows], {int(entries[row]) for row in errors})
    for row in sorted(errors):
        if plan.row_samples[row]:
            tokens[entries[row]] = -1
        result.errors.append(RowError(row=row, message=errors[row]))
    result.tokens = tokens.tobytes()
    return result


def _add_logprobs(result: StepResult, sampled: Sampled, entries: NDArray[np.int32], failed: set[int]) -> None:
    """`entries`: place in the result of each sampled row; those of `failed` say nothing."""
    found = sampled.logprobs
    assert found is not None
    places = entries[found.rows]
    good = ~np.isin(places, list(failed))
    counts = found.top_counts[good]
    # Rows want different numbers of alternatives: cut each row of the table to its own.
    within = np.arange(found.top.shape[1]) < counts[:, None]
    result.logprob_entries = places[good].astype("<i4").tobytes()
    result.logprobs = found.chosen.cpu().numpy()[good].astype("<f4").tobytes()
    result.top_counts = counts.astype("<i4").tobytes()
    result.top_tokens = found.top_tokens.cpu().numpy()[good][within].astype("<i4").tobytes()
    result.top_logprobs = found.top.cpu().numpy()[good][within].astype("<f4").tobytes()
