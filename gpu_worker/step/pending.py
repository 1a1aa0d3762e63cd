"""A step that was given to the device, and may still run there.

engine thread   begin step 1 │ begin step 2 │ ..........    begin step 3 │
device                       │ step 1 ........ │ step 2 ........ │ step 3 ...
answers                                         result 1          result 2

So the device always has its next step before it. That a model's logits were not finite is known only with the
result; it is settled afterwards, and the next step of that sequence fails, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.sampling import Sampled
from gpu_worker.machine.clock import DeviceClock, HostClock
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.step.plan import Plan
from gpu_worker.step.pooling import Embedded
from gpu_worker.step.result import NOT_FINITE, failed_rows, result_of
from proto.worker_pb2 import StepResult


@dataclass(slots=True)
class Pending:
    """A step that was given to the device; `result` waits for it."""

    plan: Plan
    samples: SamplePositions
    sampled: Sampled | None
    """What was sampled, in main memory once the clock has stopped; None if nothing was."""
    kept: Int32s
    """[rows that sample]: tokens that each of them keeps."""
    embedded: Embedded | None
    """Embeddings that the step completes, in main memory once the clock has stopped; None: there are none."""
    errors: dict[int, str]
    """What is wrong, by row of the plan."""
    tenures: NDArray[np.int64]
    """[slots]: number of the sequence that held each slot in this step, counted by slot."""
    clock: HostClock | DeviceClock
    failed: Sequence[int] = field(default=())
    """Slots whose sequences cannot go on. Known once `result` has returned."""

    def result(self) -> StepResult:
        """The step's answer. Waits for the device; any thread may call it, once."""
        duration = self.clock.wait()
        if self.sampled is not None:
            rows = failed_rows(self.sampled, self.samples, self.kept)
            self.errors.update(dict.fromkeys(rows, NOT_FINITE))
            self.failed = [int(self.plan.row_slots[row]) for row in rows]
        result = result_of(self.plan, self.sampled, self.samples, self.kept, self.errors)
        if self.embedded is not None:
            self.embedded.add_to(result)
        result.duration_us = duration
        return result
