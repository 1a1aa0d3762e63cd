"""`python -m scheduler_svc`: one scheduler process."""

import asyncio
import contextlib

from ops.process import run
from proto.rpc import Node
from proto.scheduler_pb2_grpc import add_SchedulerServicer_to_server
from proto.worker_pb2_grpc import WorkerStub
from scheduler_svc.engine import Engine
from scheduler_svc.service import SchedulerService
from scheduler_svc.settings import SchedulerSettings

GRACE_SECONDS = 5.0
"""How long requests may go on once the process is told to end; then their callers resume them elsewhere."""


async def serve(node: Node, settings: SchedulerSettings) -> None:
    """Serve the model's pool until cancelled."""
    pool = settings.served_name
    server = node.server(pool=pool, capacity=0)

    async def announce(workers: int, max_model_len: int) -> None:
        # Without a worker, calls are better left at the door: another replica may have one.
        server.set_capacity(settings.max_requests if workers else 0)
        await node.update(model=pool, workers=workers, max_model_len=max_model_len)

    engine = Engine(WorkerStub(node.channel(pool=pool)), settings, announce)
    add_SchedulerServicer_to_server(SchedulerService(engine), server)
    await announce(0, 0)
    await server.start()
    workers = asyncio.ensure_future(engine.run())
    try:
        await asyncio.shield(workers)
    finally:
        await server.stop(GRACE_SECONDS)
        workers.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await workers


if __name__ == "__main__":
    run(SchedulerSettings.from_environment(), "scheduler", serve)
