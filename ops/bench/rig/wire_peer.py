"""One process of the wire benchmark: a server, or a client that measures calls to it.

    python -m ops.bench.rig.wire_peer server|client redis|grpc

The address, which may hold a password, is in the environment. A server prints its own when it is ready. A
client prints "ready", then takes one question a line from its standard input and prints one answer a line.
Either ends with SIGTERM, or when its input ends.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any, Self

import grpc
import uvloop

from proto.rpc import Node, RedisBus

STEP_SECONDS = 0.02
ADDRESS = "WIRE_PEER_ADDRESS"
"""Environment variable: the URL of Redis, or for a client of gRPC the address that its server printed."""


@dataclass(frozen=True)
class Question:
    """A measurement to make."""

    kind: str
    """unary: one call after the other. steps: streams of a message per step. flood: streams at full speed."""
    calls: int
    """Streaming calls at a time."""
    count: int
    """Number of unary calls, or number of messages of each streaming call."""
    payload: bytes
    """Body of each message."""

    def encode(self) -> str:
        return json.dumps(asdict(self) | {"payload": self.payload.hex()})

    @classmethod
    def decode(cls, line: str) -> Self:
        fields = json.loads(line)
        return cls(**fields | {"payload": bytes.fromhex(fields["payload"])})


@dataclass(frozen=True)
class Answer:
    """The result of a measurement."""

    seconds: float
    """Seconds that the measurement took."""
    messages: int
    """Messages that the client received."""
    latencies: list[float]
    """Seconds of each unary call; empty for streaming calls."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, line: str) -> Self:
        return cls(**json.loads(line))


class Echo:
    """The service of the benchmark."""

    def __init__(self) -> None:
        self._step = asyncio.Event()

    async def unary(self, request: bytes, context: Any) -> bytes:
        return request

    async def steps(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        """Send one message at each step."""
        question = Question.decode(request.decode())
        for _ in range(question.count):
            await self._step.wait()
            yield question.payload

    async def flood(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        question = Question.decode(request.decode())
        for _ in range(question.count):
            yield question.payload

    async def step(self) -> None:
        """Step for ever, every `STEP_SECONDS`. Each step wakes all calls that wait for it."""
        while True:
            await asyncio.sleep(STEP_SECONDS)
            step, self._step = self._step, asyncio.Event()
            step.set()

    def handler(self) -> Any:
        methods = {
            "unary": grpc.unary_unary_rpc_method_handler(self.unary),
            "steps": grpc.unary_stream_rpc_method_handler(self.steps),
            "flood": grpc.unary_stream_rpc_method_handler(self.flood),
        }
        return grpc.method_handlers_generic_handler("bench.Echo", methods)


async def serve(transport: str, address: str) -> None:
    echo = Echo()
    stepper = asyncio.ensure_future(echo.step())
    async with contextlib.AsyncExitStack() as stack:
        if transport == "redis":
            node = await stack.enter_async_context(Node(RedisBus(address, "bench:"), "server"))
            server: Any = node.server(capacity=1000)
        else:
            server = grpc.aio.server()
            address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.add_generic_rpc_handlers((echo.handler(),))
        await server.start()
        print(address if transport == "grpc" else "ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(None)
    stepper.cancel()


async def call(transport: str, address: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        channel: Any
        if transport == "redis":
            node = await stack.enter_async_context(Node(RedisBus(address, "bench:"), "client"))
            channel = node.channel()
        else:
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print((await measure(channel, Question.decode(line))).encode(), flush=True)


async def measure(channel: Any, question: Question) -> Answer:
    """Make the calls that `question` asks for, and measure them."""
    start = time.perf_counter()
    if question.kind == "unary":
        method = channel.unary_unary("/bench.Echo/unary")
        latencies = []
        for _ in range(question.count):
            before = time.perf_counter()
            await method(question.payload)
            latencies.append(time.perf_counter() - before)
        return Answer(time.perf_counter() - start, question.count, latencies)
    method = channel.unary_stream(f"/bench.Echo/{question.kind}")

    async def one() -> int:
        received = 0
        async for _ in method(question.encode().encode()):
            received += 1
        return received

    received = await asyncio.gather(*(one() for _ in range(question.calls)))
    return Answer(time.perf_counter() - start, sum(received), [])


if __name__ == "__main__":
    role, transport = sys.argv[1:]
    uvloop.run({"server": serve, "client": call}[role](transport, os.environ[ADDRESS]))
