"""The processes behind the gateway: which of them live, and how to call the tokenizer service."""

import asyncio
from typing import Protocol

from proto.inside_pb2_grpc import InsideStub
from proto.rpc import Lease, Node
from proto.tokenizer_pb2_grpc import TokenizerStub

LOOK_SECONDS = 2.0
"""Time that reading the leases may take."""


class Backend(Protocol):
    """The processes behind the gateway. Tests use a plain gRPC server in place of a node."""

    async def leases(self) -> list[Lease]:
        """The leases of all live processes. Raises `ConnectionError` or `TimeoutError`."""

    def tokenizer(self, model: str) -> TokenizerStub:
        """A stub that calls the tokenizer processes of `model`."""

    def inside(self, model: str) -> InsideStub:
        """A stub with which to look into the schedulers of `model`."""


class NodeBackend:
    """The deployment that `node` belongs to."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._stubs: dict[str, TokenizerStub] = {}

    async def leases(self) -> list[Lease]:
        async with asyncio.timeout(LOOK_SECONDS):
            return await self._node.leases()

    def tokenizer(self, model: str) -> TokenizerStub:
        stub = self._stubs.get(model)
        if stub is None:
            stub = self._stubs[model] = TokenizerStub(self._node.channel(pool=model))
        return stub

    def inside(self, model: str) -> InsideStub:
        return InsideStub(self._node.channel(pool=model))
