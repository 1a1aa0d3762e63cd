"""A gateway on loopback before a tokenizer service that does as it is told."""

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx
import openai
import pytest
import pytest_asyncio
import uvicorn
from fastapi import FastAPI

from gateway.app import Options, Stores, create_app
from gateway.http.body_memory import MAX_FRAME_BYTES
from gateway.http.connections import ConnectionLimits
from gateway.http.key_ring import KeyRing
from gateway.http.meter import Meter
from gateway.http.protocol import protocol
from gateway.http.websocket import WebSocketProtocol
from gateway.upstream.batch_store import BatchStore
from gateway.upstream.file_store import FileStore
from gateway.upstream.job_queue import JobQueue
from ops.runtime.api_keys import Key, digest_of
from ops.runtime.image_store import ImageStore
from ops.runtime.limits import Limits
from ops.runtime.metrics import METRICS
from proto.inside_pb2 import Look, WatchRequest
from proto.inside_pb2_grpc import InsideServicer, InsideStub, add_InsideServicer_to_server
from proto.rpc import Lease
from proto.rpc.line import Line
from proto.sampling_pb2 import LENGTH, NOT_FINISHED, STOP
from proto.tokenizer_pb2 import (
    EmbedRequest,
    EmbedResponse,
    PromptInfo,
    TextChunk,
    TextDelta,
    TextRequest,
    TokenizeRequest,
    TokenizeResponse,
    TokenText,
)
from proto.tokenizer_pb2_grpc import TokenizerServicer, TokenizerStub, add_TokenizerServicer_to_server

WORDS = ["Once", " upon", " a", " time", ",", " a", " fox", " saw", " snow", " ❄", ".", ""]
PROMPT_TOKENS = [7, 8, 9]
JSON = {"Content-Type": "application/json"}
Generate = Callable[[TextRequest, Any], AsyncIterator[TextChunk]]
Embed = Callable[[EmbedRequest, Any], Awaitable[EmbedResponse]]


def _token(token_id: int, word: str, alternatives: int | None) -> TokenText:
    def plain(text: str, logprob: float) -> TokenText:
        return TokenText(token_id=token_id, text=text, utf8=text.encode(), logprob=logprob)

    token = plain(word, -0.5)
    token.top.extend(
        plain(word if rank == 0 else f"{word}~{rank}", -0.5 - rank) for rank in range(alternatives or 0)
    )
    return token


async def tell(request: TextRequest, context: Any) -> AsyncIterator[TextChunk]:
    """One word a chunk for every sequence: as many as asked, from where the caller was left.

    Sequence i says the words beginning with the i-th, so that sequences differ.
    """
    most = request.max_tokens if request.HasField("max_tokens") else request.most_tokens or len(WORDS)
    length = min(most, len(WORDS))
    start = {so_far.index: len(so_far.token_ids) for so_far in request.resumed}
    done = {so_far.index for so_far in request.resumed if so_far.finished}
    ids = PROMPT_TOKENS if request.return_prompt_tokens else ()
    yield TextChunk(prompt=PromptInfo(tokens=len(PROMPT_TOKENS), token_ids=ids, cached_tokens=2))
    for place in range(min(start.values(), default=0), length):
        chunk = TextChunk()
        for index in range(request.n):
            if index in done or place < start.get(index, 0):
                continue
            word = WORDS[(place + index) % len(WORDS)]
            reason = NOT_FINISHED
            if place + 1 == length:
                reason = STOP if length == len(WORDS) else LENGTH
            delta = TextDelta(index=index, text=word, token_ids=[100 + place], finish_reason=reason)
            if request.sampling.HasField("logprobs"):
                delta.logprobs.append(_token(100 + place, word, request.sampling.logprobs))
            chunk.deltas.append(delta)
        yield chunk
        await asyncio.sleep(0)


async def size_of(request: EmbedRequest, context: Any) -> EmbedResponse:
    """An embedding that says how long the text is: its length, and a third."""
    length = len(request.text) or len(request.tokens.ids)
    await asyncio.sleep(0)
    return EmbedResponse(embedding=struct.pack("<2f", length, 1 / 3), tokens=length)


@dataclass
class FakeTokenizer(TokenizerServicer):
    """Answers with `generate`, and remembers what it was asked and which calls were cancelled."""

    generate: Generate = tell
    requests: list[TextRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    embed: Embed = size_of
    texts: list[EmbedRequest] = field(default_factory=list)
    most_texts: int = 0
    """Texts that were under way at once at most."""
    _texts_now: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def Generate(self, request: TextRequest, context: Any) -> AsyncIterator[TextChunk]:
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        try:
            async for chunk in self.generate(request, context):
                yield chunk
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise

    async def Tokenize(self, request: TokenizeRequest, context: Any) -> TokenizeResponse:
        """A token for each character, and with `names` its name."""
        self.requests.append(request.request)
        text = request.request.text or "".join(one.content for one in request.request.chat.messages)
        tokens = [ord(character) for character in text] or list(request.request.tokens.ids)
        if max(tokens, default=0) > sys.maxunicode:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "no such token", (("quire-param", "prompt"),)
            )
        spelled = [chr(token) for token in tokens]
        return TokenizeResponse(
            token_ids=tokens,
            text="".join(spelled) if request.request.echo else "",
            names=spelled if request.names else (),
        )

    async def Embed(self, request: EmbedRequest, context: Any) -> EmbedResponse:
        self.texts.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self._texts_now += 1
        self.most_texts = max(self.most_texts, self._texts_now)
        try:
            return await self.embed(request, context)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self._texts_now -= 1


@dataclass
class FakeBackend:
    """A backend whose leases are a list that the test edits."""

    channel: grpc.aio.Channel
    lease_list: list[Lease]
    reachable: bool = True
    looks: int = 0

    async def leases(self) -> list[Lease]:
        self.looks += 1
        if not self.reachable:
            raise ConnectionError("nobody there")
        return self.lease_list

    def tokenizer(self, model: str) -> TokenizerStub:
        return TokenizerStub(self.channel)

    def inside(self, model: str) -> InsideStub:
        return InsideStub(self.channel)


class FakeInside(InsideServicer):
    """A scheduler that tells what a test puts into `looks`; None ends the call."""

    def __init__(self) -> None:
        self.looks: asyncio.Queue[Look | None] = asyncio.Queue()
        self.asked: list[list[str]] = []
        """Of each call, the schedulers that the caller watches already."""
        self.watching = 0

    async def Watch(self, request: WatchRequest, context: Any) -> AsyncIterator[Look]:
        self.asked.append(list(request.schedulers))
        self.watching += 1
        try:
            while (look := await self.looks.get()) is not None:
                yield look
        finally:
            self.watching -= 1


def leases_of(model: str, workers: int = 1) -> list[Lease]:
    return [
        Lease("tokenizer-1", "tokenizer", 1, {"model": model, "defaults": {"temperature": 0.6}}),
        Lease("scheduler-1", "scheduler", 1, {"model": model, "workers": workers, "max_model_len": 2048}),
    ]


@dataclass
class Gateway:
    """A running gateway."""

    url: str
    app: FastAPI
    tokenizer: FakeTokenizer
    backend: FakeBackend
    http: httpx.AsyncClient
    scheduler: FakeInside
    clients: list[openai.AsyncOpenAI] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        assert url.port is not None
        return url.host, url.port

    def openai(self) -> openai.AsyncOpenAI:
        """A client that the fixture closes. One that is not closed logs an error when it is collected, in
        whatever test that is."""
        self.clients.append(openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0))
        return self.clients[-1]

    async def events(self, path: str, **body: Any) -> list[str]:
        """The server-sent events of a streamed answer, without their framing."""
        response = await self.http.post(path, json={"model": "m", "stream": True, **body})
        assert response.status_code == 200, response.text
        *events, rest = response.text.split("\n\n")
        assert rest == ""
        return [event.removeprefix("data: ") for event in events]


@pytest.fixture
def keys_of() -> Callable[[Mapping[str, str]], KeyRing]:
    """Makes the keys of a gateway. It is given the tenant by API key."""

    def keys_of(tenants: Mapping[str, str]) -> KeyRing:
        return KeyRing({digest_of(secret): Key(name=name, tenant=name) for secret, name in tenants.items()})

    return keys_of


class NoTokenizer:
    """A backend that offers model "m" and must not be asked to generate."""

    async def leases(self) -> list[Lease]:
        return leases_of("m")

    def tokenizer(self, model: str) -> TokenizerStub:
        raise AssertionError("a bad request reached the tokenizer")

    def inside(self, model: str) -> InsideStub:
        raise AssertionError("a bad request reached a scheduler")


class Uncounted(Meter):
    """Counts nothing."""

    async def begin(self, *_: object) -> dict[str, str]:
        return {}

    async def end(self, *_: object) -> None:
        pass


async def own_metrics() -> dict[str, bytes]:
    """The metrics of this process alone."""
    return {"gateway": METRICS.snapshot()}


def stores_of(**kept: Any) -> Stores:
    """Stores over a Redis that is not there, but for those that are given."""
    nowhere, prefix = Line("redis://127.0.0.1:1/0"), "none:"
    files = FileStore(nowhere, prefix, seconds=600, tenant_bytes=2**20, all_bytes=2**20)
    usual = {
        "meter": Uncounted(nowhere, prefix, "gateway-1"),
        "metrics": own_metrics,
        "responses": None,
        "background": JobQueue(nowhere, prefix, "response", 1),
        "batches": BatchStore(nowhere, prefix, files),
        "batch_queue": JobQueue(nowhere, prefix, "batch", 1),
        "images": ImageStore(nowhere, prefix),
        "claims": None,
    }
    return Stores(**usual | kept)


def app_of(
    backend: Any,
    keys: KeyRing | None = None,
    limits: Limits | None = None,
    stores: Stores | None = None,
    options: Options | None = None,
) -> FastAPI:
    """A gateway's application; what is not given is as if nothing had been set."""
    return create_app(
        backend, keys or KeyRing(), limits or Limits(), stores or stores_of(), options or Options()
    )


@pytest.fixture(scope="session")
def refusing_app() -> FastAPI:
    """It keeps nothing of a request: one for all tests, as to make it takes longer than what they ask."""
    return app_of(NoTokenizer())


@pytest_asyncio.fixture
async def refusing(refusing_app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway, in this process, that is expected to refuse everything."""
    transport = httpx.ASGITransport(refusing_app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=JSON) as http:
        yield http


@pytest.fixture
def tokenizer() -> FakeTokenizer:
    return FakeTokenizer()


@pytest.fixture
def scheduler() -> FakeInside:
    return FakeInside()


@pytest_asyncio.fixture
async def backend(tokenizer: FakeTokenizer, scheduler: FakeInside) -> AsyncIterator[FakeBackend]:
    server = grpc.aio.server()
    add_TokenizerServicer_to_server(tokenizer, server)
    add_InsideServicer_to_server(scheduler, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield FakeBackend(channel, leases_of("m"))
    await server.stop(None)


class Server(uvicorn.Server):
    """Says when it is up, and stops at once when told to."""

    def __init__(self, config: uvicorn.Config, port: int) -> None:
        super().__init__(config)
        self.port = port
        self.up, self.enough = asyncio.Event(), asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self.up.set()
        await self.enough.wait()


@contextlib.asynccontextmanager
async def serving(app: Any, limits: ConnectionLimits | None = None) -> AsyncIterator[Server]:
    """A server of `app` on loopback, whose connections are the gateway's."""
    limits = limits or ConnectionLimits()
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        http=protocol(limits),
        timeout_keep_alive=max(1, int(limits.idle)),
        ws=WebSocketProtocol,
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        lifespan="auto",
        log_config=None,
        access_log=False,
    )
    config.timeout_graceful_shutdown = 1
    server = Server(config, listener.getsockname()[1])
    running = asyncio.ensure_future(server.serve([listener]))
    await server.up.wait()
    try:
        yield server
    finally:
        server.enough.set()
        await running


@pytest_asyncio.fixture
async def gateway(
    tokenizer: FakeTokenizer, backend: FakeBackend, scheduler: FakeInside
) -> AsyncIterator[Gateway]:
    app = app_of(backend)
    async with serving(app) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, headers=JSON) as http:
            running = Gateway(url, app, tokenizer, backend, http, scheduler)
            yield running
            for client in running.clients:
                await client.close()
