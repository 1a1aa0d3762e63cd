"""Runs requests of all kinds: finds their model, waits for a place there, and counts them."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TypeVar

from gateway.errors import Overloaded, Stopping, TooLarge, Unavailable
from gateway.upstream.admission import Admission
from gateway.upstream.attempts import Attempts, Parts
from gateway.upstream.backend import Backend
from gateway.upstream.catalog import Catalog, Model
from gateway.upstream.generation import Chunks, Generation, Shorten
from gateway.upstream.images import NO_IMAGES, Images, KeptImages
from gateway.upstream.measures import Measures
from gateway.upstream.merge import merged
from gateway.upstream.places import Asker, Load
from gateway.upstream.purpose import Check, generates, sees_images
from ops.runtime.image_store import ImageStore
from proto.rpc.call import MAX_MESSAGE_BYTES
from proto.tokenizer_pb2 import EmbedRequest, TextRequest
from proto.tokenizer_pb2_grpc import TokenizerStub

WATCH_SECONDS = 5.0

logger = logging.getLogger(__name__)

Call = TypeVar("Call", bound=Attempts)


class Generator:
    """Runs requests, and ends those that wait for a model that is lost."""

    def __init__(
        self,
        backend: Backend,
        catalog: Catalog,
        answer_timeout: float | None,
        images: ImageStore,
    ) -> None:
        """`answer_timeout`: seconds that an answer may take whose request does not say; None: any time.
        `images`: where the services find those of requests."""
        self.answer_timeout = answer_timeout
        self._image_store = images
        self._backend = backend
        self._catalog = catalog
        self._admissions: dict[str, Admission] = {}
        """By model."""
        self._measures: dict[str, Measures] = {}
        """By model."""
        self._live: dict[Attempts, str] = {}
        self._stopping = False
        self.under_way = 0
        """Requests that run or wait for a place."""

    async def sees_images(self, model: str) -> bool:
        """Raises `NotFound` or `Unavailable` for a model that is not available."""
        return (await self._catalog.find(model)).images

    def check_room(self, model: str, tenant: str, user: str) -> None:
        """Raise `Overloaded` if a request would be refused now: before anything is made for it."""
        name = self._catalog.name_of(model)
        if (admission := self._admissions.get(name)) is not None:
            with self._counting_refusals(name):
                admission.check_room(Asker(tenant, user))

    async def defaults_of(self, model: str) -> Mapping[str, float]:
        """Sampling parameters that the model has of its own; none while it is not available.

        Raises `NotFound` if nobody knows the model.
        """
        with suppress(Unavailable):  # it comes back
            return (await self._catalog.find(model)).defaults
        return {}

    @asynccontextmanager
    async def run(
        self,
        model: str,
        requests: Sequence[TextRequest],
        timeout: float | None = None,
        images: Images = NO_IMAGES,
        shorten: Shorten | None = None,
    ) -> AsyncIterator[Chunks]:
        """The chunks of all requests as they come.

        `timeout`: seconds until all answers must be complete; None: `answer_timeout`. `images`: those that
        the requests name. `shorten`: is called until a conversation fits into the context; None: one that is
        too long is refused. Raises `GatewayError`.
        """
        timeout = self.answer_timeout if timeout is None else timeout

        def begin(tokenizer: TokenizerStub) -> list[Generation]:
            name, parts = self._catalog.name_of(model), Parts()
            measures = self._measures_of(name)
            return [
                Generation(tokenizer, request, measures, timeout, parts, name, shorten)
                for request in requests
            ]

        async with (
            self.watched(model, begin, requests, timeout, fits=generates, images=images) as generations,
            aclosing(merged([each.chunks(number) for number, each in enumerate(generations)])) as chunks,
        ):
            yield chunks

    @asynccontextmanager
    async def watched(
        self,
        model: str,
        begin: Callable[[TokenizerStub], list[Call]],
        requests: Sequence[TextRequest | EmbedRequest],
        timeout: float | None = None,
        at_once: int | None = None,
        fits: Check | None = None,
        images: Images = NO_IMAGES,
    ) -> AsyncIterator[list[Call]]:
        """The calls that `begin` makes of the model's tokenizer service, once there is a place for them.

        They end when the model is lost. `requests`: what they send. `timeout`: seconds that they may take,
        from now on. `at_once`: how many of them run at once at most; None: all, and each may be paused.
        `fits`: raises `BadRequest` if the model is not for this; None: any is. `images`: those that the
        requests name. They are in Redis from the first call on until this ends.
        Raises `NotFound` or `Unavailable` for a model that is not available, `BadRequest` for images that it
        does not see, `TooLarge`, `Overloaded` or `TimedOut` if there is no place.
        """
        found = await self._catalog.find(model)
        if fits is not None:
            fits(found)
        if self._stopping:
            raise Stopping
        adapter = self._catalog.adapter_of(model)
        for request in requests:
            request.adapter = adapter
        kept = self._kept(found, images) if images else None
        load = _load(requests, images, at_once)
        calls = begin(self._backend.tokenizer(found.name))
        self._live.update(dict.fromkeys(calls, found.name))
        self.under_way += 1
        try:
            # Calls that run in turns have no places of their own to give up.
            pausable = calls if at_once is None else ()
            with self._counting_refusals(found.name):
                asker = Asker(requests[0].tenant, requests[0].user)
                async with self._place(found, asker, load, timeout, pausable) as leave:
                    for call in pausable:
                        call.leave = partial(leave, call)
                    for call in calls:
                        call.images = kept
                    yield calls
        finally:
            self.under_way -= 1
            for call in calls:
                call.close()
                del self._live[call]
                call.leave = (
                    None  # it refers to the call, and only the collector of garbage would find the two
                )
            if kept is not None:
                await kept.drop()

    def _kept(self, model: Model, images: Images) -> KeptImages:
        """Raises `BadRequest` if the model sees no images."""
        sees_images(model)
        return KeptImages(self._image_store, images)

    def _place(
        self,
        model: Model,
        asker: Asker,
        load: Load,
        timeout: float | None,
        pausable: Sequence[Attempts],
    ) -> AbstractAsyncContextManager[Callable[[Attempts], None]]:
        admission = self._admissions.get(model.name)
        if admission is None:
            admission = self._admissions[model.name] = Admission(model.capacity)
        admission.resize(model.capacity)
        return admission.place(asker, load, timeout, pausable)

    @contextmanager
    def _counting_refusals(self, model: str) -> Iterator[None]:
        """Count a request that finds no room: here, or at the scheduler."""
        try:
            yield
        except Overloaded:
            self._measures_of(model).refused.add()
            raise

    def read_metrics(self) -> None:
        """Set the metrics of what is so at this moment."""
        for model, admission in self._admissions.items():
            measures = self._measures_of(model)
            measures.calls_under_way.set(admission.under_way)
            measures.calls_waiting.set(admission.waiting)

    def _measures_of(self, model: str) -> Measures:
        """Of a model that there is: its name may be anything until that is known."""
        measures = self._measures.get(model)
        if measures is None:
            measures = self._measures[model] = Measures(model)
        return measures

    async def watch(self) -> None:
        """Until cancelled, end the requests that wait for a lost model: see `Catalog.lost`."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if not self._live:
                continue
            lost = await self._catalog.lost()
            for model, error in lost.items():
                if model in self._admissions:
                    self._admissions[model].refuse_waiters(error)
            for call, model in list(self._live.items()):
                if model in lost:
                    call.end(lost[model])

    def stop(self) -> None:
        """End all requests, and start no new ones."""
        self._stopping = True
        for admission in self._admissions.values():
            admission.refuse_waiters(Stopping())
        for call in self._live:
            call.end(Stopping())


def _load(requests: Sequence[TextRequest | EmbedRequest], images: Images, at_once: int | None) -> Load:
    """Raises `TooLarge` for a request that no message can carry."""
    sizes = [one.ByteSize() for one in requests]
    if max(sizes) > MAX_MESSAGE_BYTES:
        raise TooLarge(f"The text of a prompt has at most {MAX_MESSAGE_BYTES // 2**20} MiB.")
    return Load(min(len(requests), at_once or len(requests)), sum(sizes) + sum(map(len, images.values())))
