"""A step that the device was given and may still be computing.

engine thread   begin step 1 │ begin step 2 │ ..........    begin step 3 │
device                       │ step 1 ........ │ step 2 ........ │ step 3 ...
answers                                         result 1          result 2

So the device always has its next step queued. Whether a model's logits were finite is known only with the
result. If they were not, `Runner.settle` lets the sequence fail in all steps that begin afterwards.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s
from gpu_worker.kernels.sampling import Sampled
from gpu_worker.machine.clock import DeviceClock, HostClock
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.step.plan import Plan
from gpu_worker.step.pooling import Embedded
from gpu_worker.step.prompt_logprobs import PromptLogprobs
from gpu_worker.step.result import NOT_FINITE, ForcedTokens, add_forced, failed_rows, result_of
from proto.worker_pb2 import StepResult


@dataclass(slots=True)
class Pending:
    """A step that the device was given. `result` waits for its end."""

    plan: Plan
    samples: SamplePositions
    sampled: Sampled | None
    """Sampled tokens, in main memory once the device has ended the step; None if no row samples."""
    kept: Int32s
    """[rows that sample]: tokens that each row keeps after its drafts were verified."""
    embedded: Embedded | None
    """Embeddings that the step completes, in main memory once the device has ended it; None if none are."""
    prompts: PromptLogprobs | None
    """Log probabilities of prompts, in main memory once the device has ended it; None if none are wanted."""
    errors: dict[int, str]
    """Error message of each row that fails, by its index in the plan."""
    generations: NDArray[np.int64]
    """[slots]: `Batch.generations` when the step began: which of a slot's sequences the step was for."""
    clock: HostClock | DeviceClock
    """Measures how long the device takes for the step."""
    forced: ForcedTokens
    """What grammars force in the sequences of rows."""
    at_limits: Container[int] = field(default=())
    """Rows of `errors` whose grammars go no further."""
    failed: Sequence[int] = field(default=())
    """Slots whose logits were not finite, so that their sequences fail. Set by `result`."""

    def result(self) -> StepResult:
        """The answer to the plan. Waits for the device. To be called once, by any thread."""
        duration = self.clock.wait()
        rows = [] if self.sampled is None else failed_rows(self.sampled, self.samples, self.kept)
        if self.prompts is not None:
            rows += self.prompts.failed()
        if rows:
            self.errors.update(dict.fromkeys(rows, NOT_FINITE))
            self.failed = [int(self.plan.row_slots[row]) for row in rows]
        result = result_of(self.plan, self.sampled, self.samples, self.kept, self.errors)
        for error in result.errors:
            error.grammar = error.row in self.at_limits
        if self.embedded is not None:
            self.embedded.add_to(result)
        if self.prompts is not None:
            self.prompts.add_to(result, self.errors)
        if self.forced:
            add_forced(result, self.forced, self.errors)
        result.duration_us = duration
        return result
