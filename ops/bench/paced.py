"""What the chain of processes carries: answers from a worker whose device takes a given time a step.

`python -m ops.bench.paced [--out FILE]` starts a deployment of the shipped model in which the worker does
everything but the model: it takes plans, keeps the batch, and answers with tokens that mean nothing when its
device would be done. So one sees on any machine what a fast device would have to wait for, and what a token
costs the other processes where many come at once.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gpu_worker.engine import Engine
from gpu_worker.kernels.rows import Rows
from gpu_worker.kernels.sampling import Sampled
from gpu_worker.machine.clock import HostClock
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.service import WorkerService
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.startup.sizing import STEP_TOKENS
from gpu_worker.step.pending import Pending
from gpu_worker.step.plan import Plan
from gpu_worker.step.pooling import Embedded
from gpu_worker.step.prompt_logprobs import PromptLogprobs
from gpu_worker.step.runner import Runner
from ops.bench.chain import under_load
from ops.bench.command import parser
from ops.bench.load.client import CompletionClient
from ops.bench.load.load import closed_loop
from ops.bench.load.processes import cpu_seconds
from ops.bench.load.workload import Workload
from ops.bench.record import write
from ops.launcher.acl import CHAIN
from ops.launcher.ready import wait_ready
from ops.launcher.redis_server import RedisServer, free_port
from ops.launcher.served import Served
from ops.launcher.specs import BEHIND, FRONT, Options, service_specs
from ops.launcher.supervisor import Supervisor
from ops.runtime.child import Child
from ops.runtime.process import run
from proto.rpc import Node
from proto.worker_pb2 import StepPlan
from proto.worker_pb2_grpc import add_WorkerServicer_to_server

STEP = "QUIRE_BENCH_STEP_MS"
"""Tells the worker how long its device takes for a step."""
STEPS = (5.0, 15.0)
"""Milliseconds."""
USERS = (1, 8, 32, 128, 256)
ANSWER = 256
"""Tokens. As many steps, if the device is kept busy."""
WORKLOAD = Workload(prompt_lengths=(32,), output_lengths=(ANSWER, ANSWER))
SECONDS = 8.0
"""A load's length, about."""
SHIPPED = Served()
NOTHING: Mapping[str, str] = {}
LEASE_SECONDS = 60
"""Longer than a process has to wait for a processor, however busy the machine is: none is taken for dead."""


class PacedClock(HostClock):
    """A step's time on a device that does one step after the other; see `gpu_worker.machine.clock`."""

    def __init__(self, due: float, seconds: float) -> None:
        self._due, self._seconds = due, seconds

    def wait(self) -> int:
        time.sleep(max(0.0, self._due - time.perf_counter()))
        return int(self._seconds * 1e6)


class PacedRunner(Runner):
    """Computes nothing, and is done with it when the device would be."""

    def __init__(self, runner: Runner, seconds: float) -> None:
        super().__init__(runner.model, runner.caches, runner.kernels, runner.limits)
        self._seconds = seconds
        self._free = 0.0
        """When the device has done all that it was given."""

    def begin(self, message: StepPlan) -> Pending:
        step = super().begin(message)
        seconds = self._seconds if message.rows.slots else 0.0
        self._free = max(self._free, time.perf_counter()) + seconds
        return replace(step, clock=PacedClock(self._free, seconds))

    def _compute(
        self, plan: Plan, rows: Rows, samples: SamplePositions, errors: dict[int, str]
    ) -> tuple[Sampled | None, Embedded | None, PromptLogprobs | None]:
        self.batch.metadata(rows)
        tokens = torch.from_numpy(samples.positions.astype("int64")) % 1000 + 300
        return Sampled(tokens, torch.ones(len(tokens), dtype=torch.bool), None), None, None


async def serve(node: Node, settings: WorkerSettings) -> None:
    """The worker's process, as `gpu_worker.__main__` has it."""
    runner = PacedRunner(load(settings), float(os.environ[STEP]) / 1000)
    engine = Engine(runner, overlap=True)
    server = node.server(pool=settings.served_name, capacity=1)
    add_WorkerServicer_to_server(WorkerService(engine, settings.served_name), server)
    await node.update(model=settings.served_name, device="paced", dtype="none")
    await server.start()
    try:
        await server.wait_for_termination()
    finally:
        await server.stop(0)
        await engine.stop()


@contextlib.asynccontextmanager
async def deployed(
    milliseconds: float, slots: int, model: Served = SHIPPED, settings: Mapping[str, str] = NOTHING
) -> AsyncIterator[tuple[Options, Supervisor, RedisServer]]:
    """A deployment with such a worker, until the block ends. `settings`: of all its processes."""
    options = Options(models=(model,), port=free_port(), speculation="off")
    with tempfile.TemporaryDirectory() as logs, RedisServer() as redis:
        worker, *others = service_specs(options, dict.fromkeys(CHAIN, redis.url))
        own = {
            **worker.environment,
            STEP: str(milliseconds),
            "QUIRE_MAX_SLOTS": str(slots),
            "QUIRE_STEP_TOKENS": str(STEP_TOKENS["cuda"]),
        }
        command = (sys.executable, "-m", "ops.bench.paced", "--worker")
        worker = replace(worker, command=command, environment=own)
        settings = {"QUIRE_LEASE_SECONDS": str(LEASE_SECONDS)} | dict(settings)
        specs = [replace(one, environment={**one.environment, **settings}) for one in (worker, *others)]

        async def buried(child: Child, status: int) -> None:
            words = child.last_words()
            raise RuntimeError(f"{child.spec.name} has died with status {status}; its last words:\n{words}")

        supervisor = Supervisor(specs, Path(logs), print, buried, lambda: None)
        async with supervisor.running(BEHIND), supervisor.running(FRONT):
            await wait_ready(options.url, options.model_names)
            yield options, supervisor, redis


def process_ids(supervisor: Supervisor, redis: RedisServer) -> dict[str, int]:
    """Of every process, by name."""
    assert redis.process is not None
    services = {child.spec.name: child.identity.pid for child in supervisor.children if child.identity}
    return {"redis": redis.process.pid} | services


async def carried(milliseconds: float, users: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """What comes through for each number of users."""
    found = []
    async with deployed(milliseconds, max(users)) as (options, supervisor, redis):
        client = CompletionClient(options.url, options.model_names[0])
        await closed_loop(client, WORKLOAD.conversations(max(users), seed + 1), max(users))  # warm up
        used = partial(cpu_seconds, process_ids(supervisor, redis))
        for count in users:
            rounds = max(1, round(SECONDS * 1000 / milliseconds / ANSWER))
            questions = WORKLOAD.conversations(rounds * count, seed)
            load = await under_load(client, used, questions, count)
            of_the_device = load["output_rate"] * milliseconds / 1000 / count
            found.append(load | {"of_the_device": round(of_the_device, 3)})
            print(f"{milliseconds:g} ms, {count} users: {json.dumps(found[-1])}", flush=True)
    return found


def main() -> None:
    command = parser(__doc__, "paced.json")
    command.add_argument("--steps", type=float, nargs="+", default=STEPS, help="milliseconds of a step")
    command.add_argument("--users", type=int, nargs="+", default=USERS)
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = command.parse_args()
    if options.worker:
        run(WorkerSettings.from_environment(), "worker", serve)
        return
    results = {
        "prompt_tokens": WORKLOAD.prompt_lengths[0],
        "answer_tokens": ANSWER,
        "by_step_ms": {
            f"{step:g}": asyncio.run(carried(step, options.users, options.seed)) for step in options.steps
        },
    }
    write(options.out, "paced", options.seed, results)


if __name__ == "__main__":
    main()
