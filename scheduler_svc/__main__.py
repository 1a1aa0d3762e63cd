"""`python -m scheduler_svc`: one scheduler process."""

import asyncio
import signal
from collections.abc import Sequence

from ops.runtime.drain import LOOK_SECONDS, drain, peers
from ops.runtime.metrics import METRICS
from ops.runtime.process import run
from proto.inside_pb2_grpc import add_InsideServicer_to_server
from proto.rpc import Lease, Node, Owner
from proto.scheduler_pb2_grpc import add_SchedulerServicer_to_server
from proto.worker_pb2_grpc import WorkerStub
from scheduler_svc.engine import Engine
from scheduler_svc.inside.service import MOST_WATCHERS, InsideService
from scheduler_svc.service import SchedulerService
from scheduler_svc.settings import SchedulerSettings


async def serve(node: Node, settings: SchedulerSettings) -> None:
    """Serve the model's pool until cancelled, and after that until `drain` returns."""
    pool = settings.served_name
    server = node.server(pool=pool, capacity=0)

    offer = {
        "workers": 0,
        "stalled": 0,
        "max_model_len": 0,
        "adapters": [],
        "headless": False,
        "capacity": settings.max_requests,
    }
    changed, stranded = asyncio.Event(), asyncio.Event()

    def announce(workers: int, max_model_len: int) -> None:
        # Without a worker, calls are better left at the door: another replica may have one.
        server.set_capacity(settings.max_requests if workers else 0)
        offer.update(workers=workers, stalled=engine.stalled, max_model_len=max_model_len)
        offer.update(adapters=engine.fleet.adapters, headless=engine.fleet.headless)
        changed.set()
        if not workers:
            stranded.set()

    async def publish() -> None:
        while True:
            await changed.wait()
            changed.clear()
            await node.update(**offer)

    async def hand_over_when_stranded() -> None:
        # Without a worker calls only wait here, while another scheduler that has one could go on with them.
        while True:
            await stranded.wait()
            stranded.clear()
            while not offer["workers"]:
                if server.busy and any(each.info.get("workers") for each in await peers(node, server.door)):
                    engine.hand_over()
                await asyncio.sleep(LOOK_SECONDS)

    asked = asyncio.Event()

    async def record_when_asked() -> None:
        while True:
            await asked.wait()
            asked.clear()
            await engine.record()

    def enough(others: Sequence[Lease]) -> bool:
        # A scheduler that has no worker gets one of ours when we end; without a worker our calls only wait.
        return any(not (offer["workers"] and each.info.get("workers")) for each in others)

    engine = Engine(WorkerStub(node.channel(pool=pool)), settings, announce, node.fail)
    METRICS.read_by(engine.read_metrics)
    add_SchedulerServicer_to_server(SchedulerService(engine), server)
    inside = node.server(pool=pool, capacity=MOST_WATCHERS)
    add_InsideServicer_to_server(InsideService(engine, node.id), inside)
    if settings.recordings is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, asked.set)
        await node.update(recordings=str(settings.recordings.absolute()))
    await node.update(model=pool, **offer)
    await server.start()
    await inside.start()
    async with Owner(node.fail) as owner:
        owner.own(engine.run(), "what serves the workers")
        owner.own(publish(), "what announces the workers")
        owner.own(hand_over_when_stranded(), "what hands calls over when there is no worker")
        owner.own(record_when_asked(), "what writes recordings")
        try:
            await owner.ended()
        except asyncio.CancelledError:
            await drain(node, server, settings.stop_seconds, enough)
            raise
        finally:
            await inside.stop(None)
            await server.stop(None)


if __name__ == "__main__":
    run(SchedulerSettings.from_environment(), "scheduler", serve)
