"""What the gateway needs of the processes behind it: who is there, and a way to call the tokenizer."""

import asyncio
from typing import Protocol

from proto.rpc import Lease, Node
from proto.tokenizer_pb2_grpc import TokenizerStub

LOOK_SECONDS = 2.0


class Backend(Protocol):
    """The processes behind the gateway; tests give it a plain gRPC server instead of a node."""

    async def leases(self) -> list[Lease]:
        """Every process that lives. Raises `ConnectionError` or `TimeoutError` if nobody can tell."""

    def tokenizer(self, model: str) -> TokenizerStub:
        """A stub whose calls go to the tokenizer processes of `model`."""


class NodeBackend:
    """The deployment that `node` is part of."""

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
