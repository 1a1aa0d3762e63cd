"""`python -m scheduler_svc`: one scheduler process."""

import asyncio

from ops.runtime.process import run
from proto.rpc import Node
from proto.scheduler_pb2_grpc import add_SchedulerServicer_to_server
from proto.worker_pb2_grpc import WorkerStub
from scheduler_svc.engine import Engine
from scheduler_svc.service import SchedulerService
from scheduler_svc.settings import SchedulerSettings

GRACE_SECONDS = 5.0
"""How long requests may go on after the signal to end; then their callers resume them elsewhere."""


async def serve(node: Node, settings: SchedulerSettings) -> None:
    """Serve the model's pool until cancelled."""
    pool = settings.served_name
    server = node.server(pool=pool, capacity=0)

    offer = {"workers": 0, "max_model_len": 0}
    changed = asyncio.Event()

    def announce(workers: int, max_model_len: int) -> None:
        # Without a worker, calls are better left at the door: another replica may have one.
        server.set_capacity(settings.max_requests if workers else 0)
        offer.update(workers=workers, max_model_len=max_model_len)
        changed.set()

    async def publish() -> None:
        while True:
            await changed.wait()
            changed.clear()
            await node.update(**offer)

    engine = Engine(WorkerStub(node.channel(pool=pool)), settings, announce)
    add_SchedulerServicer_to_server(SchedulerService(engine), server)
    await node.update(model=pool, **offer)
    await server.start()
    tasks = [asyncio.ensure_future(engine.run()), asyncio.ensure_future(publish())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        await server.stop(GRACE_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    run(SchedulerSettings.from_environment(), "scheduler", serve)
