"""Small steps that are repeated from a record: CUDA graphs on GPUs, tapes of kernel calls on CPUs."""

from dataclasses import replace
from functools import partial

from gpu_worker.kernels.cpu.kernels import CpuKernels
from gpu_worker.kernels.cpu.recorded_steps import RecordedSteps
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.step.forward import Forward
from gpu_worker.step.runner import Runner


def record_steps(runner: Runner, kernels: Kernels, ranks: Ranks = ALONE) -> None:
    """Let small steps of the model and the draft model be repeated.

    `kernels`: the runner's, without what is around them. Does nothing for back ends and models whose kernel
    calls depend on more than the size of a step.
    """
    if not isinstance(runner.forward, Forward):
        return
    forwards = [runner.forward, *(runner.drafter.forwards if runner.drafter is not None else ())]
    for forward in forwards:
        if isinstance(kernels, CpuKernels) and isinstance(forward.model, Decoder):
            forward.recorded = _on_tapes(runner, kernels, forward, forward.model)
    if runner.device.type == "cuda" and isinstance(kernels, ReferenceKernels) and kernels.replayable:
        _as_graphs(runner, forwards, ranks)


def _on_tapes(runner: Runner, kernels: CpuKernels, forward: Forward, model: Decoder) -> RecordedSteps:
    metadata, blocks = partial(forward.metadata, runner.batch), runner.limits.max_blocks
    return RecordedSteps(kernels.library, model, runner.kernels.begin, forward.caches, metadata, blocks)


def _as_graphs(runner: Runner, forwards: list[Forward], ranks: Ranks) -> None:
    from gpu_worker.kernels.triton.graphs.graphs import StepGraphs, recorder
    from gpu_worker.kernels.triton.graphs.layouts import layouts_for

    record = recorder(ranks.count_replay)
    for forward in forwards:
        if forward.model.config.replayable:
            tables = runner.batch.tables
            if not forward.in_grid:
                tables = replace(tables, shifts=None)
            graphs = StepGraphs(forward.compute, tables, record)
            graphs.prepare(layouts_for(runner.limits.max_slots, runner.limits.max_step_tokens))
            forward.recorded = graphs
