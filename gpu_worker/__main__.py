"""`python -m gpu_worker`: one worker process."""

import asyncio
import logging
from functools import partial
from typing import Any

from gpu_worker.engine import Engine
from gpu_worker.errors import TRANSIENT, WorkerError
from gpu_worker.machine.rates import Rates
from gpu_worker.pace.watch import pace_of
from gpu_worker.service import WorkerService
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.fingerprint import arithmetic_of
from gpu_worker.startup.load import load, populate_memory, resolved
from gpu_worker.startup.rates import rates_of
from gpu_worker.step.runner import Runner
from ops.runtime.drain import drain
from ops.runtime.errors import StartError, TransientStartError
from ops.runtime.image_store import ImageStore
from ops.runtime.metric_names import IMAGE_SECONDS, IMAGES_SEEN, MASKED_ROWS
from ops.runtime.metrics import METRICS
from ops.runtime.process import run
from ops.runtime.watchdog import end_at_once
from proto.rpc import Node, Owner
from proto.rpc.line import Line
from proto.worker_pb2_grpc import add_WorkerServicer_to_server

log = logging.getLogger(__name__)


async def serve(node: Node, settings: WorkerSettings) -> None:
    """Load the model, then wait at the workers' door until cancelled, and after that until `drain` returns.

    Raises `DeviceError` when the GPU is lost.
    """
    settings, rates, runner = await _load(node, settings)
    arithmetic = arithmetic_of(settings, runner.kernels, runner.device)
    machine = rates.describe(arithmetic) if rates is not None else {}
    if machine:
        log.info("this machine: %s", ", ".join(f"{name} {rate}" for name, rate in machine.items()))
    loop = asyncio.get_running_loop()
    slow: asyncio.Queue[str] = asyncio.Queue()

    def note(what: str) -> None:
        loop.call_soon_threadsafe(slow.put_nowait, what)

    engine = Engine(runner, pace=pace_of(settings, runner, rates, arithmetic, note))
    METRICS.read_by(partial(_read_metrics, runner, settings.served_name))
    server = node.server(pool=settings.served_name, capacity=1)
    images = ImageStore(Line(settings.redis_url), settings.stream_prefix) if runner.limits.images else None
    add_WorkerServicer_to_server(WorkerService(engine, settings.served_name, images), server)
    await node.update(stage="", model=settings.served_name, **_offer(runner, arithmetic), **machine)
    populate_memory(runner)
    async with Owner(node.fail) as owner:
        owner.own(_watch(engine), "what watches the device")
        owner.own(_run(engine), "the engine")
        owner.own(_tell(node, slow), "what says that steps are slow")
        try:
            await server.start()
            log.info("ready for a scheduler")
            await owner.ended()
        except asyncio.CancelledError:
            # Nothing here outlives the call that it is for, and the scheduler has all that it needs to go on
            # with another worker: the sooner it knows, the better. Without another worker sequences go on.
            await drain(node, server, settings.stop_seconds, lambda peers: bool(peers) or engine.rests())
            raise
        finally:
            await server.stop(0)
            await engine.stop()
            runner.close()


async def _load(node: Node, settings: WorkerSettings) -> tuple[WorkerSettings, Rates | None, Runner]:
    """The settings with directories, this machine's rates, and the model. Raises `StartError`."""
    loop = asyncio.get_running_loop()

    def tell(stage: str) -> None:
        """Let the lease say what is being done; from any thread."""
        asyncio.run_coroutine_threadsafe(node.update(stage=stage), loop)

    try:
        tell("fetching the model")
        settings = await asyncio.to_thread(resolved, settings)
        tell("measuring this machine")
        rates = await asyncio.to_thread(rates_of, settings)  # before the model takes memory
        runner = await asyncio.to_thread(load, settings, tell=tell)
    except TRANSIENT as error:
        raise TransientStartError(str(error)) from error
    except WorkerError as error:
        raise StartError(str(error)) from error
    return settings, rates, runner


def _offer(runner: Runner, arithmetic: str) -> dict[str, Any]:
    """What the process's lease says of the worker."""
    limits, reason = runner.limits, getattr(runner.kernels, "reason", "")
    return {
        "device": runner.device.type,
        "dtype": str(runner.dtype).removeprefix("torch."),
        "fingerprint": runner.fingerprint,
        "arithmetic": f"{arithmetic}, more slowly: {reason}" if reason else arithmetic,
        "blocks": 0 if limits.bidirectional else limits.num_blocks,  # an encoder keeps nothing
        "block_size": limits.block_size,
        "slots": limits.max_slots,
        "longest": limits.max_model_len,
    }


async def _watch(engine: Engine) -> None:
    end_at_once(await engine.watchdog.hung())


def _read_metrics(runner: Runner, model: str) -> None:
    METRICS.counter(MASKED_ROWS, model).value = runner.batch.grammars.masked_rows
    if (images := runner.batch.images) is not None:
        METRICS.counter(IMAGES_SEEN, model).value = images.watch.count
        METRICS.counter(IMAGE_SECONDS, model).value = images.watch.seconds


async def _run(engine: Engine) -> None:
    """The engine's threads, as a task: raises what has ended one of them, or `DeviceError`."""
    await asyncio.shield(engine.lost)


async def _tell(node: Node, slow: "asyncio.Queue[str]") -> None:
    """Let the lease say which part of steps is slow, or that none is."""
    while True:
        await node.update(slow=await slow.get())


if __name__ == "__main__":
    run(WorkerSettings.from_environment(), "worker", serve)
