"""What goes on inside the deployment, for those who look.

There is one subscription to each scheduler, however many look. While nobody looks, nobody is asked anything.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator

import grpc

from gateway.upstream.backend import Backend
from gateway.upstream.contents import BlockContent, Contents
from gateway.upstream.picture import Change, Picture, change_of
from proto.inside_pb2 import WatchRequest
from proto.rpc import Lease

LOOK_SECONDS = 1.0
"""Time between two looks at the leases."""
BEHIND = 100
"""Changes that a reader may be behind. Beyond that it is told everything anew."""
ENDED_KEPT = 20
"""Processes that have gone and are told of."""

logger = logging.getLogger(__name__)


class Inside:
    """What those who look are told. `watch` may be called by any number of them at the same time."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._session: _Session | None = None
        """None while nobody looks."""

    async def watch(self) -> AsyncGenerator[str, None]:
        """Changes as JSON, the first of them all that there is, until the generator is closed."""
        if self._session is None:
            self._session = _Session(self._backend)
        session = self._session
        queue = session.join()
        try:
            while (change := await queue.get()) is not None:
                yield change
        finally:
            session.readers.discard(queue)
            if not session.readers and self._session is session:
                self._session = None
                await session.close()

    def block(self, scheduler: str, worker: int, block: int) -> BlockContent | None:
        """What a block holds; None if that is not known, as while nobody looks."""
        return None if self._session is None else self._session.contents.of(scheduler, worker, block)

    def model(self, scheduler: str) -> str | None:
        """The model of a scheduler that is watched."""
        known = None if self._session is None else self._session.picture.schedulers.get(scheduler)
        return None if known is None else str(known["model"])


class _Session:
    """The time from when the first one looks until the last one has left."""

    def __init__(self, backend: Backend) -> None:
        self.picture, self.contents = Picture(), Contents()
        self.readers: set[asyncio.Queue[str | None]] = set()
        self._backend = backend
        self._living: dict[str, Change] = {}
        """Processes by id, as they are told."""
        self._ended: deque[Change] = deque(maxlen=ENDED_KEPT)
        self._asked = Counter[str]()
        """Subscriptions by model."""
        self._watched: set[str] = set()
        """Schedulers that tell us."""
        self._looking = asyncio.create_task(self._look())
        self._looking.add_done_callback(self._ended_unasked)

    def join(self) -> "asyncio.Queue[str | None]":
        """The changes for one more reader; None is their end."""
        queue: asyncio.Queue[str | None] = asyncio.Queue()
        for change in self.picture.whole():
            queue.put_nowait(_json(change))
        self.readers.add(queue)
        return queue

    async def close(self) -> None:
        """Look no more."""
        self._looking.cancel()
        await asyncio.gather(self._looking, return_exceptions=True)

    def _ended_unasked(self, looking: "asyncio.Task[None]") -> None:
        if not looking.cancelled():
            logger.error("looking inside has failed", exc_info=looking.exception())
        for queue in self.readers:
            queue.put_nowait(None)

    async def _look(self) -> None:
        """Look at the leases again and again, and watch every scheduler that has one."""
        async with asyncio.TaskGroup() as subscriptions:
            while True:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    for model in self._note(await self._backend.leases()):
                        self._asked[model] += 1
                        subscriptions.create_task(self._subscribe(model))
                await asyncio.sleep(LOOK_SECONDS)

    def _note(self, leases: list[Lease]) -> list[str]:
        """Tell who has come and gone. Returns the model of each scheduler that is not watched yet."""
        now = time.time()
        found = {lease.process_id: _process(lease) for lease in leases}
        for process_id in self._living.keys() - found.keys():
            self._ended.appendleft({**self._living[process_id], "ended": now})
        for process_id, process in found.items():
            process["seen"] = self._living.get(process_id, {}).get("seen", now)
        if found != self._living:
            self._living = found
            self._tell({"processes": list(found.values()), "ended": list(self._ended)})
        schedulers = Counter(str(lease.info.get("model")) for lease in leases if lease.service == "scheduler")
        return list((schedulers - self._asked).elements())

    async def _subscribe(self, model: str) -> None:
        """Tell what one scheduler tells, one that is not watched yet, until it ends."""
        call = self._backend.inside(model).Watch(WatchRequest(schedulers=sorted(self._watched)))
        scheduler = ""
        try:
            async for look in call:
                if not scheduler:
                    scheduler = look.scheduler
                    self._watched.add(scheduler)
                self.contents.note(look)
                self._tell(change_of(look, model))
        except grpc.aio.AioRpcError as error:
            if error.code() not in (grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.UNAVAILABLE):
                logger.warning("a scheduler of %s does not tell what it does: %s", model, error.details())
        finally:
            call.cancel()
            self._asked[model] -= 1
            self._watched.discard(scheduler)
            self.contents.forget(scheduler)
            if scheduler:
                self._tell({"scheduler": scheduler, "away": True})

    def _tell(self, change: Change) -> None:
        self.picture.apply(change)
        text = _json(change)
        for queue in self.readers:
            if queue.qsize() < BEHIND:
                queue.put_nowait(text)
                continue
            while not queue.empty():
                queue.get_nowait()
            for whole in self.picture.whole():
                queue.put_nowait(_json(whole))


def _process(lease: Lease) -> Change:
    """A process as it is told."""
    info = {name: value for name, value in lease.info.items() if isinstance(value, str | int | float)}
    names = ("service", "host", "pid", "epoch")
    return {"id": lease.process_id, **{name: getattr(lease, name) for name in names}, "info": info}


def _json(change: Change) -> str:
    return json.dumps(change, separators=(",", ":"))
