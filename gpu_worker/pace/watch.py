"""A worker's pace: what a step of its model does at least, and what the log says if steps are slow."""

import logging
from collections.abc import Callable, Sequence

from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.reference.kept import KeptWeights
from gpu_worker.machine.cores import granted
from gpu_worker.machine.rates import Rates
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.work import ITEM_BYTES, Work, is_known, work
from gpu_worker.pace.pace import SLOW, Pace, Slow
from gpu_worker.settings import WorkerSettings
from gpu_worker.step.plan import Plan
from gpu_worker.step.runner import Runner

log = logging.getLogger(__name__)

HELD_UP = 0.85
"""Share of a step's time below which the thread that computes has waited for a core, or for other threads."""


def pace_of(
    settings: WorkerSettings,
    runner: Runner,
    rates: Rates | None,
    arithmetic: str,
    note: Callable[[str], None],
) -> Pace | None:
    """What compares this runner's steps with their floors; None where these are not known.

    They are known of decoders with one MLP a layer and without a draft model. `arithmetic`: what computes
    (`fingerprint.arithmetic_of`). `note`: is told in short what is slow, and "" once nothing is, by the
    thread that computes.
    """
    config = runner.model.config
    if rates is None or runner.drafter is not None or not isinstance(config, ModelConfig):
        return None
    if not is_known(config) or isinstance(runner.kernels, KeptWeights):  # of several types
        return None
    itemsize = ITEM_BYTES.get(settings.quantization, runner.dtype.itemsize)
    token_bytes = runner.token_bytes

    def work_of(plan: Plan) -> Work | None:
        # What adapters add has no floor.
        if not len(plan.row_counts) or runner.batch.adapters.take(plan.row_slots, mode="clip").any():
            return None
        contexts = plan.row_starts + plan.row_counts
        sampled = int(plan.row_samples.sum())
        return work(config, itemsize, token_bytes, plan.row_counts, contexts, sampled)

    hints = _hints(settings, arithmetic)

    def say(slow: Slow | None) -> None:
        if slow is None:
            log.info("steps are within %g times their floors again", SLOW)
            note("")
        else:
            log.warning("%s", line(slow, hints))
            note(f"{slow.part}, {slow.times:.1f} times the floor")

    return Pace(work_of, rates, say)


def line(slow: Slow, hints: Sequence[str] = ()) -> str:
    """What the log says of slow steps, and what to look at. `hints`: what is known of the settings."""

    def told(part: str) -> str:
        least = slow.floors[part]
        floor = f" (at least {_ms(least)})" if least else ""
        return f"{part} {_ms(slow.parts[part])}{floor}"

    rest = ", ".join(told(part) for part in slow.parts if part != slow.part)
    found = list(hints)
    if slow.computing < HELD_UP:
        found.insert(
            0,
            f"the thread that computes had a core for {slow.computing:.0%} of the time: "
            "other processes, other machines of the host, or a limit of CPU time",
        )
    if not found:
        found.append("other processes and other machines of the host, which take memory bandwidth")
    return (
        f"a step takes {_ms(slow.step)}, {slow.times:.1f} times its floor of {_ms(slow.floor)}: "
        f"most of it beyond that is {told(slow.part)}; {rest}. Look at: {'; '.join(found)}"
    )


def _hints(settings: WorkerSettings, arithmetic: str) -> list[str]:
    """What the settings have to do with slow steps."""
    found = []
    threads, cores = settings.thread_count, granted()
    if threads != cores:
        found.append(f"QUIRE_THREADS: {threads} threads, {cores} cores")
    best = build.supported()[0]
    if arithmetic.split()[0] != best:
        found.append(f"QUIRE_KERNELS: {arithmetic} computes, the processor has {best}")
    return found


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"
