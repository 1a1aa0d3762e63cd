"""`python -m gpu_worker`: one worker process."""

import asyncio
import logging

from gpu_worker.engine import Engine
from gpu_worker.errors import WorkerError
from gpu_worker.service import WorkerService
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load, populate_memory
from ops.runtime.errors import StartError
from ops.runtime.process import run
from ops.runtime.watchdog import end_at_once
from proto.rpc import Node
from proto.worker_pb2_grpc import add_WorkerServicer_to_server

log = logging.getLogger(__name__)


async def serve(node: Node, settings: WorkerSettings) -> None:
    """Load the model, then wait at the workers' door until cancelled.

    Raises `DeviceError` when the GPU is lost.
    """
    try:
        runner = await asyncio.to_thread(load, settings)
    except WorkerError as error:
        raise StartError(str(error)) from error
    engine = Engine(runner)
    server = node.server(pool=settings.served_name, capacity=1)
    add_WorkerServicer_to_server(WorkerService(engine, settings.served_name), server)
    dtype = str(runner.dtype).removeprefix("torch.")
    await node.update(model=settings.served_name, device=runner.device.type, dtype=dtype)
    populate_memory(runner)
    await server.start()
    log.info("ready for a scheduler")
    hanging = asyncio.ensure_future(engine.watchdog.hung())
    hanging.add_done_callback(lambda hung: hung.cancelled() or end_at_once(hung.result()))
    try:
        await asyncio.gather(server.wait_for_termination(), engine.lost)
    finally:
        hanging.cancel()
        # Nothing here outlives the call that it is for, and the scheduler has all that it needs to go
        # on with another worker: the sooner it knows, the better.
        await server.stop(0)
        await engine.stop()
        runner.close()


if __name__ == "__main__":
    run(WorkerSettings.from_environment(), "worker", serve)
