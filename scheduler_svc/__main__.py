"""`python -m scheduler_svc`: one scheduler process."""

import asyncio
import signal
import time
from collections.abc import Sequence

from ops.runtime.drain import LOOK_SECONDS, drain, peers
from ops.runtime.metrics import METRICS
from ops.runtime.process import run
from proto.inside_pb2_grpc import add_InsideServicer_to_server
from proto.rpc import Lease, Node, Owner, Server
from proto.scheduler_pb2_grpc import add_SchedulerServicer_to_server
from proto.worker_pb2_grpc import WorkerStub
from scheduler_svc.engine import STRANDED_SECONDS, Engine, Offer
from scheduler_svc.inside.service import MOST_WATCHERS, InsideService
from scheduler_svc.service import SchedulerService
from scheduler_svc.settings import SchedulerSettings


async def serve(node: Node, settings: SchedulerSettings) -> None:
    """Serve the model's pool until cancelled, and after that until `drain` returns."""
    pool = settings.served_name
    server = node.server(pool=pool, capacity=0)
    workers = _Workers(node, server, settings)
    engine = workers.engine
    METRICS.read_by(engine.read_metrics)
    add_SchedulerServicer_to_server(SchedulerService(engine), server)
    inside = node.server(pool=pool, capacity=MOST_WATCHERS)
    add_InsideServicer_to_server(InsideService(engine, node.id), inside)
    record = asyncio.Event()
    if settings.recordings is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, record.set)
        await node.update(recordings=str(settings.recordings.absolute()))
    await node.update(model=pool, **workers.offer)
    await server.start()
    await inside.start()
    async with Owner(node.fail) as owner:
        owner.own(engine.run(), "what serves the workers")
        owner.own(workers.publish(), "what announces the workers")
        owner.own(workers.hand_over_when_stranded(), "what hands calls over when there is no worker")
        owner.own(_record_when_asked(engine, record), "what writes recordings")
        try:
            await owner.ended()
        except asyncio.CancelledError:
            await drain(node, server, settings.stop_seconds, workers.better_elsewhere)
            raise
        finally:
            await inside.stop(None)
            await server.stop(None)


class _Workers:
    """The engine, and what follows from its workers: what the lease says, and where calls should run."""

    def __init__(self, node: Node, server: Server, settings: SchedulerSettings) -> None:
        self._node, self._server, self._capacity = node, server, settings.max_requests
        stub = WorkerStub(node.channel(pool=settings.served_name))
        self.engine = Engine(stub, settings, self._announce, node.fail)
        self.offer = {
            "workers": 0,
            "stalled": 0,
            "max_model_len": 0,
            "adapters": [],
            "fingerprints": [],
            "images": False,
            "headless": False,
            "capacity": settings.max_requests,
        }
        """What the process's lease says of its workers."""
        self._changed, self._stranded = asyncio.Event(), asyncio.Event()

    def _announce(self, workers: int, max_model_len: int) -> None:
        # Without a worker, calls are better left at the door: another replica may have one.
        self._server.set_capacity(self._capacity if workers else 0)
        fleet = self.engine.fleet
        self.offer.update(workers=workers, stalled=self.engine.stalled, max_model_len=max_model_len)
        self.offer.update(adapters=fleet.adapters, fingerprints=fleet.fingerprints)
        self.offer.update(images=fleet.images, headless=fleet.headless)
        self._changed.set()
        if not workers:
            self._stranded.set()

    async def publish(self) -> None:
        """Keep the lease up to date."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._node.update(**self.offer)

    async def hand_over_when_stranded(self) -> None:
        """Give up the calls that another scheduler has a worker for, while there is none here.

        Here they would only wait. Their callers make them anew at the other one. An answer that would be cut
        short there, or that may not go on there, waits `STRANDED_SECONDS` for a worker here.
        """
        while True:
            await self._stranded.wait()
            self._stranded.clear()
            since = time.monotonic()
            while not self.offer["workers"]:
                if self._server.busy and (offers := await self._offers_elsewhere()):
                    waited = time.monotonic() - since >= STRANDED_SECONDS
                    self.engine.hand_over(None if waited else offers)
                await asyncio.sleep(LOOK_SECONDS)

    async def _offers_elsewhere(self) -> list[Offer]:
        """What other schedulers that have workers say of them."""
        offers = [each.info for each in await peers(self._node, self._server.door)]
        return [offer for offer in offers if offer.get("workers")]

    def better_elsewhere(self, others: Sequence[Lease]) -> bool:
        """Whether calls are better handed over than finished, while this process stops: see `drain.Enough`.

        A scheduler that has no worker gets one of ours when we end; without a worker our calls only wait.
        """
        return any(not (self.offer["workers"] and each.info.get("workers")) for each in others)


async def _record_when_asked(engine: Engine, asked: asyncio.Event) -> None:
    while True:
        await asked.wait()
        asked.clear()
        await engine.record()


if __name__ == "__main__":
    run(SchedulerSettings.from_environment(), "scheduler", serve)
