"""Calls of the tokenizer service through the death of whoever serves them.

The gateway remembers what it was given; when a call's server dies, it calls again with that, and
the next tokenizer process goes on from there.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from gateway.errors import GatewayError, from_rpc, retry_after
from ops.runtime.telemetry import outgoing
from proto.rpc import Resumption


@dataclass
class Parts:
    """The prompts, or texts, of one request: while some are under way, those that find no room come back."""

    under_way: int = 0
    """Those that are being asked, or have been answered."""


class Attempts:
    """One thing that is asked of the tokenizer service, in as many calls as it takes."""

    def __init__(self, timeout: float | None = None, parts: Parts | None = None) -> None:
        """`timeout`: seconds from now in which the answer is to be complete. `parts`: which it is one of."""
        self._parts = parts or Parts()
        self._due = None if timeout is None else time.monotonic() + timeout
        self._call: Any = None
        self._ended_by: GatewayError | None = None

    def end(self, error: GatewayError) -> None:
        """End it from outside: who waits for the answer gets `error`."""
        self._ended_by = error
        if self._call is not None:
            self._call.cancel()

    def _begin(self, method: Callable[..., Any], request: object, resumption: Resumption) -> Any:
        """The next call; what is left of the time is its timeout."""
        self._parts.under_way += 1
        metadata = (*outgoing(), *resumption.metadata())
        self._call = method(request, metadata=metadata, timeout=self._left(), wait_for_ready=True)
        return self._call

    def _left(self) -> float | None:
        return None if self._due is None else max(0.001, self._due - time.monotonic())

    async def _retry_or_raise(
        self, resumption: Resumption, error: grpc.aio.AioRpcError, names: Mapping[str, str]
    ) -> None:
        """Return when another call is worth it; else raise what the client is told.

        `names`: see `from_rpc`.
        """
        self._parts.under_way -= 1
        # Else a request with more parts than may wait would never be served, however often it is made.
        if self._parts.under_way and (seconds := retry_after(error)):
            await asyncio.sleep(min(seconds, self._left() or seconds))
            return
        try:
            resumption.retry_or_raise(error)
        except grpc.aio.AioRpcError:
            raise from_rpc(error, names) from error
