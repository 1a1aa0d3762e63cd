"""One step, taken apart: scheduler, queue, the worker's host code, the model by kind of kernel, sampling.

Beside it stands the least that a step can take on this machine (`gpu_worker/models/work.py`), and how each
part grows with the batch, with the contexts and with the number of requests that wait.
"""

import asyncio
import gc
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from gpu_worker.machine.rates import Rates, measured
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.work import ITEM_BYTES, work
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.forward import Forward
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.runner import Runner
from ops.bench.load.client import CompletionClient
from ops.bench.load.load import closed_loop, summarize
from ops.bench.load.processes import running
from ops.bench.load.workload import Workload
from ops.bench.rig.in_process import InProcess
from ops.bench.rig.pages import fill
from ops.bench.rig.plans import decodes, fits, prefill
from ops.bench.rig.stolen import calm, stolen_since
from ops.bench.rig.timed import PARTS, TimedKernels
from ops.launcher.redis_server import RedisServer
from proto.rpc import Node, RedisBus
from proto.worker_pb2 import StepPlan
from proto.worker_pb2_grpc import WorkerStub
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import StepResult
from scheduler_svc.core.request import Request

BATCHES = (1, 8, 32, 64)
CONTEXTS = (128, 512, 1024, 2048)
WAITING = (0, 100, 1000, 10_000)
CONTEXT = 256
"""Tokens of each sequence where it is the batch that grows."""
BATCH = 8
"""Sequences where it is the context that grows."""
PREFILL = 512
STEPS = 24
"""Steps of each shape; the median counts."""
TOGETHER = 6
"""Steps between which the machine's rates are not measured anew."""
REST = 0.03
"""Seconds after that: PyTorch's threads go on looking for work for a while, and would take the cores."""


@dataclass(frozen=True)
class Model:
    """A runner whose kernels are timed, and what its machine can do."""

    runner: Runner
    timed: TimedKernels
    threads: int
    rates: list[Rates]
    """Measured every few steps: other machines on the same host come and go."""
    itemsize: float
    """Bytes of a weight."""
    token_bytes: int
    """Of a token's keys and values in all layers."""

    @classmethod
    def load(cls, settings: WorkerSettings) -> "Model":
        around: list[TimedKernels] = []

        def wrap(kernels: Any) -> Any:
            around.append(TimedKernels(kernels))
            return around[0]

        runner = load(settings, wrap)
        for cache in runner.pages:  # memory that was never written is one page of zeros, read from the cache
            fill(cache)
        threads = settings.thread_count  # before the runner's thread keeps to one core
        runner.enter()
        return cls(
            runner,
            around[0],
            threads,
            [],
            ITEM_BYTES.get(settings.quantization, runner.dtype.itemsize),
            runner.token_bytes,
        )

    def measure_rates(self) -> None:
        with ThreadPoolExecutor(1) as apart:  # the runner's own thread keeps to one core; so would PyTorch's
            self.rates.append(apart.submit(_rates, self.runner.dtype, self.threads).result())
        time.sleep(REST)


@dataclass(frozen=True)
class Shape:
    """A step of some shape."""

    seconds: dict[str, float]
    """By part."""
    floor: float
    """Seconds."""
    over_floor: float
    """Each step over the floor of its own time, as the machine was then."""

    def table(self) -> dict[str, float]:
        """Milliseconds by part, beside the floor."""
        found = {part: round(1000 * spent, 3) for part, spent in self.seconds.items()}
        return found | {"floor": round(1000 * self.floor, 3), "times the floor": round(self.over_floor, 3)}


def decode_step(model: Model, rows: int, context: int, seed: int) -> Shape:
    """A step of `rows` decodes at about `context` tokens."""
    plans = partial(decodes, model.runner.limits, rows, context, STEPS, seed)
    return _by_part(model, plans, [1] * rows, [context - STEPS // 2] * rows)


def prefill_step(model: Model, tokens: int, seed: int) -> Shape:
    """A step that computes a prompt of `tokens` tokens."""
    prompt = Workload(prompt_lengths=(tokens,)).conversations(1, seed)[0][0].prompt
    assert not isinstance(prompt, str)
    plan = prefill(model.runner.limits, prompt)

    def plans() -> Iterable[StepPlan]:
        for _ in range(3):
            model.runner.reset()
            yield plan

    return _by_part(model, plans, [tokens], [tokens])


def _by_part(
    model: Model, plans: Callable[[], Iterable[StepPlan]], counts: list[int], contexts: list[int]
) -> Shape:
    """As in a worker, which repeats small steps from a record; then kernel by kernel, for its parts."""
    runner, config = model.runner, model.runner.model.config
    if not isinstance(config, ModelConfig):
        raise ValueError(f"what a step of {config.architecture} has to do at least is not known")
    least = work(config, model.itemsize, model.token_bytes, counts, contexts)
    first = len(model.rates)
    whole = [step["kernel by kernel"] for step in _steps(model, plans())]
    # Of each step by the better of the rates before and after.
    floors = [
        least.floor(_best(model.rates[first + number // TOGETHER :][:2])) for number in range(len(whole))
    ]
    forward = runner.forward
    assert isinstance(forward, Forward)
    recorded, forward.recorded = forward.recorded, None
    try:
        steps = _steps(model, plans())
    finally:
        forward.recorded = recorded
    warm = slice(len(steps) // 4, None)
    found = {part: median(step[part] for step in steps[warm]) for part in steps[0]}
    # Medians of parts do not add up to the median of their sum: the host code takes the difference.
    found["host code"] = found["kernel by kernel"] - sum(found[part] for part in PARTS)
    ratios = [step / floor for step, floor in zip(whole[warm], floors[warm], strict=True)]
    return Shape({"step": median(whole[warm]), **found}, median(floors[warm]), median(ratios))


def _steps(model: Model, plans: Iterable[StepPlan]) -> list[dict[str, float]]:
    """Seconds of each step, and of its parts. The machine's rates are measured between them."""
    runner, timed = model.runner, model.timed
    steps = []
    runner.reset()
    for number, plan in enumerate(plans):
        if number % TOGETHER == 0:
            model.measure_rates()
        timed.clear()
        started = time.perf_counter()
        result = runner.execute(plan)
        whole = time.perf_counter() - started
        if result.errors:
            raise RuntimeError(result.errors[0].message)
        parts = {part: timed.seconds.get(part, 0.0) for part in PARTS}
        steps.append({"kernel by kernel": whole, **parts, "host code": whole - sum(parts.values())})
    runner.reset()
    model.measure_rates()
    return steps


def _rates(dtype: torch.dtype, threads: int) -> Rates:
    os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
    return measured(dtype, threads)


def _best(rates: Sequence[Rates]) -> Rates:
    return Rates(max(each.read for each in rates), max(each.matrix for each in rates))


def scheduler_step(limits: BatchLimits, running_rows: int, waiting: int) -> float:
    """Milliseconds that a plan and its result cost the scheduler, with `waiting` requests in the queue."""
    fleet = Fleet(max(limits.max_step_tokens, running_rows))
    scheduler, _ = fleet.add_worker(
        WorkerLimits(
            num_blocks=running_rows * 64,
            block_size=limits.block_size,
            max_slots=running_rows,
            max_model_len=limits.max_model_len,
            max_step_tokens=max(limits.max_step_tokens, running_rows),
            vocab_size=limits.vocab_size,
        )
    )
    for number in range(running_rows + waiting):
        prompt = array("i", [number % limits.vocab_size, number // limits.vocab_size, 1])
        fleet.accept(Request(str(number), prompt, max_tokens=STEPS * 4))
    spent = []
    for _ in range(STEPS * 2):
        started = time.perf_counter()
        plan = scheduler.plan()
        assert plan is not None
        middle = time.perf_counter()
        result = StepResult(plan.step, [0] * sum(plan.rows.samples))
        after = time.perf_counter()
        fleet.settle(scheduler, scheduler.complete(result))
        spent.append(time.perf_counter() - after + middle - started)
    return round(1000 * median(spent[STEPS // 2 :]), 4)


async def _queue(worker_settings: WorkerSettings, batches: Iterable[int], seed: int) -> dict[str, float]:
    """Milliseconds between sending a plan and having its result that the worker did not compute in."""
    server = RedisServer().start()
    environment = os.environ | {
        "QUIRE_REDIS_URL": server.url,
        "QUIRE_LOG_LEVEL": "WARNING",
        "QUIRE_MODEL": str(worker_settings.model),
        "QUIRE_DTYPE": worker_settings.dtype,
        "QUIRE_THREADS": str(worker_settings.threads),
        "QUIRE_MAX_MODEL_LEN": str(worker_settings.max_model_len),
        "QUIRE_KV_MEMORY": str(int(worker_settings.kv_memory or 1 << 30)),
    }
    worker = await asyncio.create_subprocess_exec(sys.executable, "-m", "gpu_worker", env=environment)
    try:
        async with Node(RedisBus(server.url), service="bench") as node:
            stub: Any = WorkerStub(node.channel(pool=worker_settings.served_name))
            found = {}
            for rows in batches:
                call = stub.Execute(wait_for_ready=True)
                ready = (await call.read()).ready
                spent = []
                for plan in decodes(_limits_of(ready), rows, CONTEXT, STEPS, seed):
                    started = time.perf_counter()
                    await call.write(plan)
                    result = (await call.read()).result
                    spent.append(time.perf_counter() - started - result.duration_us / 1e6)
                call.cancel()
                found[str(rows)] = round(1000 * median(spent[STEPS // 4 :]), 3)
            return found
    finally:
        worker.terminate()
        await worker.wait()
        server.stop()


def _limits_of(ready: Any) -> BatchLimits:
    return BatchLimits(
        num_blocks=ready.num_blocks,
        block_size=ready.block_size,
        max_slots=ready.max_slots,
        max_model_len=ready.max_model_len,
        max_step_tokens=ready.max_step_tokens,
        vocab_size=ready.vocab_size,
    )


def measure(settings: WorkerSettings, seed: int) -> dict[str, Any]:
    """Everything about a step of this model on this machine."""
    with ThreadPoolExecutor(1) as engine:  # a thread of its own computes, as in a worker
        limits, result = engine.submit(_model_parts, settings, seed).result()
    gc.collect()
    batches = [int(rows) for rows in result["decode_by_batch"]]
    return result | {
        "scheduler_ms_by_batch": {str(rows): scheduler_step(limits, rows, 0) for rows in batches},
        "scheduler_ms_by_waiting": {str(many): scheduler_step(limits, 32, many) for many in WAITING},
        "queue_ms_by_batch": asyncio.run(_queue(settings, batches, seed)),
    }


def _model_parts(settings: WorkerSettings, seed: int) -> tuple[BatchLimits, dict[str, Any]]:
    """What the worker computes, by part."""
    model = Model.load(settings)
    limits = model.runner.limits
    batches = [rows for rows in BATCHES if fits(limits, rows, CONTEXT)]
    contexts = [context for context in CONTEXTS if fits(limits, BATCH, context)]
    shapes = {
        "decode_by_batch": {str(rows): decode_step(model, rows, CONTEXT, seed) for rows in batches},
        "decode_by_context": {str(size): decode_step(model, BATCH, size, seed) for size in contexts},
        "prefill": {str(PREFILL): prefill_step(model, min(PREFILL, limits.max_step_tokens), seed)},
    }
    best = _best(model.rates)
    return limits, {
        "model": settings.served_name,
        "dtype": str(model.runner.dtype).removeprefix("torch."),
        "threads": model.threads,
        "read_gb_s": round(best.read / 1e9, 2),
        "matrix_gflop_s": round(best.matrix / 1e9, 1),
        **{kind: {size: shape.table() for size, shape in sizes.items()} for kind, sizes in shapes.items()},
    }


def in_process(settings: WorkerSettings, users: tuple[int, ...], rounds: int, seed: int) -> dict[str, Any]:
    """The chain of processes, asked over HTTP, against the same engine in this process, in turns.

    Turns that lost cores to other virtual machines are left out, unless all did.
    """
    runner = load(settings)
    workload = Workload()
    given = {
        "QUIRE_MODEL": str(settings.model),
        "QUIRE_DTYPE": settings.dtype,
        "QUIRE_KV_MEMORY": str(int(settings.kv_memory or 1 << 30)),
        "QUIRE_MAX_MODEL_LEN": str(settings.max_model_len),
        "QUIRE_STEP_TOKENS": str(runner.limits.max_step_tokens),
    }
    rates: dict[int, list[tuple[float, float, float]]] = {many: [] for many in users}
    with running(**given) as deployment:
        client = CompletionClient(deployment.url, deployment.model)
        for number in range(rounds + 1):  # the first round warms up
            for many in users:
                drawn = seed + 1000 * number + many
                requests = max(6, 2 * many)
                conversations = workload.conversations(requests, drawn)
                stolen = stolen_since()
                answers, seconds = asyncio.run(closed_loop(client, conversations, many))
                chain = summarize(answers, seconds)
                if chain.errors:
                    raise RuntimeError(next(answer.error for answer in answers if answer.error))
                engine = InProcess(runner, step_tokens=runner.limits.max_step_tokens)
                alone = summarize(*engine.closed_loop(conversations, many))
                if number:
                    rates[many].append((chain.output_rate, alone.output_rate, stolen()))
    return {
        "model": settings.served_name,
        "dtype": str(runner.dtype).removeprefix("torch."),
        "rounds": rounds,
        "output_tokens_per_second": {str(many): side_by_side(turns) for many, turns in rates.items()},
    }


def side_by_side(turns: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """`turns`: tokens a second of the chain and of the engine, and the share of core time others took."""
    turns = calm(turns, lambda turn: turn[2])
    return {
        "turns": len(turns),
        "chain": median(chain for chain, _, _ in turns),
        "in_process": median(alone for _, alone, _ in turns),
        "ratio": _spread([chain / alone for chain, alone, _ in turns]),
    }


def _spread(ratios: list[float]) -> list[float]:
    """Lowest, median, highest."""
    return [round(number, 3) for number in (min(ratios), median(ratios), max(ratios))]


def table(result: dict[str, Any]) -> str:
    """A result of `measure` for a person; milliseconds."""
    shapes = {
        **{f"{rows} decodes, context {CONTEXT}": one for rows, one in result["decode_by_batch"].items()},
        **{f"{BATCH} decodes, context {size}": one for size, one in result["decode_by_context"].items()},
        **{f"prefill of {size}": one for size, one in result["prefill"].items()},
    }
    parts = ["step", "floor", "times the floor", "host code", *PARTS]
    lines = [
        f"{result['model']}, {result['dtype']}, {result['threads']} threads; memory read at "
        f"{result['read_gb_s']} GB/s, products at {result['matrix_gflop_s']} GFLOP/s",
        f"{'milliseconds':<28}" + "".join(f"{part.split()[0]:>12}" for part in parts),
    ]
    for name, one in shapes.items():
        lines.append(f"{name:<28}" + "".join(f"{one[part]:>12.3f}" for part in parts))
    for title, key in (
        ("scheduler, by decodes", "scheduler_ms_by_batch"),
        ("scheduler, by waiting requests", "scheduler_ms_by_waiting"),
        ("queue both ways, by decodes", "queue_ms_by_batch"),
    ):
        lines.append(f"{title}: " + ", ".join(f"{many}: {one}" for many, one in result[key].items()))
    return "\n".join(lines)
