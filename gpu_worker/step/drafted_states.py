"""States of rows with drafts: they are written when it is known which drafts hold.

    step       row of a, and drafts b c d      its states are read, and stay as they were
    verified   b holds, c does not
    then       each recurrent layer again, of a and b, with what it was given for them: its state is written

Nothing else of a layer is computed again: neither products nor attention.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.attention import StepAttention, StepMetadata
from gpu_worker.kernels.recurrence import DeltaRule, Filters, StateCache, StateSpace, StepRecurrence
from gpu_worker.kernels.rows import Rows
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.step.batch import Batch

Again = Callable[[StepRecurrence, Tensor], object]
"""Computes within another step what a layer has computed of some of the remembered tokens."""


class DraftedStates:
    """The states of those rows of one step that have drafts."""

    def __init__(self, batch: Batch, rows: Rows, begin: Callable[[StepMetadata], StepAttention]) -> None:
        """`rows`: of the step, some of which have drafts. `begin`: see `Kernels`."""
        self._batch, self._rows, self._begin = batch, rows, begin
        self._calls: list[Again] = []

    def begin(self, step: StepMetadata) -> StepAttention:
        """As `Kernels.begin`, of a step that leaves the states of these rows as they are."""
        rows = self._rows
        places = self._batch.send(np.flatnonzero(np.repeat(rows.drafted, rows.counts)))
        attention = self._begin(replace(step, drafted=tuple(rows.drafted.tolist())))
        return cast(StepAttention, _Remembering(attention, places, self._calls))

    def write(self, samples: SamplePositions, kept: Int32s) -> None:
        """Write the states after what holds of each row. `kept`: see `SamplePositions.kept`."""
        rows, drafted, batch = self._rows, np.flatnonzero(self._rows.drafted), self._batch
        given = rows.counts[drafted]
        held = given - rows.samples[drafted] + kept[np.searchsorted(samples.rows, rows.index[drafted])]
        order = np.argsort(held, kind="stable")
        remembered = (np.cumsum(given, dtype=np.int32) - given)[order]  # where the tokens of each row begin
        drafted, held = drafted[order], held[order]
        index, slots, starts = rows.index[drafted], rows.slots[drafted], rows.starts[drafted]
        _, places, _ = Rows(index, slots, remembered, held, held).tokens()
        step, _, _ = batch.metadata(Rows(index, slots, starts, held, held))
        attention, tokens = self._begin(step), batch.send(places)
        for compute in self._calls:
            compute(attention, tokens)
        assert batch.states is not None
        batch.states.computed[slots] = starts + held


class _Remembering:
    """A step, with what its recurrent layers are given. See `StepAttention`."""

    def __init__(self, step: StepAttention, places: Tensor, calls: list[Again]) -> None:
        """`places`: int64 [remembered], tokens of the step that are remembered."""
        self._step, self._places, self._calls = step, places, calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def convolve(self, inputs: Tensor, filters: Filters, cache: StateCache) -> Tensor:
        seen = inputs[self._places]
        self._calls.append(lambda step, tokens: step.convolve(seen[tokens], filters, cache))
        return self._step.convolve(inputs, filters, cache)

    def delta_rule(self, qkv: Tensor, gates: Tensor, rule: DeltaRule, cache: StateCache) -> Tensor:
        seen, own = qkv[self._places], gates[self._places]
        self._calls.append(lambda step, tokens: step.delta_rule(seen[tokens], own[tokens], rule, cache))
        return self._step.delta_rule(qkv, gates, rule, cache)

    def state_space(self, inputs: Tensor, steps: Tensor, space: StateSpace, cache: StateCache) -> Tensor:
        seen, own = inputs[self._places], steps[self._places]
        self._calls.append(lambda step, tokens: step.state_space(seen[tokens], own[tokens], space, cache))
        return self._step.state_space(inputs, steps, space, cache)
