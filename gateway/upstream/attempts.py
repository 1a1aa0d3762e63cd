"""Calls of the tokenizer service that survive the death of the process that serves them.

The gateway keeps everything it has received. When a call's server dies, it sends that along with another
call, and the next tokenizer process continues from there. So does a call that was paused, see `admission.py`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry import trace

from gateway.errors import GatewayError, TimedOut, Unavailable, from_rpc, retry_after
from gateway.upstream.images import KeptImages
from ops.runtime.telemetry import calling, carried, within
from proto.rpc import BusAway, Resumption
from proto.tokenizer_pb2 import EmbedRequest, TextRequest, TokenizeRequest

logger = logging.getLogger(__name__)

PUT_TRIES = 10
"""Times that images are put into Redis which cannot be reached."""
PUT_AGAIN_SECONDS = 1.0
"""Time between two of them."""

_METHODS = {
    TextRequest: "quire.Tokenizer/Generate",
    EmbedRequest: "quire.Tokenizer/Embed",
    TokenizeRequest: "quire.Tokenizer/Tokenize",
}


@dataclass
class Parts:
    """The prompts, or texts, of one request, each a call of its own.

    A call that is refused because the service is full is made again while another call of the request runs
    or has succeeded. Otherwise the whole request is refused.
    """

    under_way: int = 0
    """Number of calls that run or have succeeded."""


def _late() -> TimedOut:
    return TimedOut("The answer was not complete within 'timeout'.", param="timeout")


class Attempts:
    """One prompt or text for the tokenizer service: one call, and another each time that a server dies."""

    def __init__(self, timeout: float | None = None, parts: Parts | None = None) -> None:
        """`timeout`: seconds until the answer must be complete. `parts`: of the request it belongs to."""
        self._parts = parts or Parts()
        self._due = None if timeout is None else time.monotonic() + timeout
        self._call: Any = None
        self._ended_by: GatewayError | None = None
        self._turn: asyncio.Future[None] | None = None
        """Is done when the call may go on, if it was paused."""
        self.images: KeptImages | None = None
        """The images of the request, if it has any."""
        self.leave: Callable[[], None] | None = None
        """Gives back the call's place, if it has one of its own."""
        self._counted = False
        """`parts` has it among those under way."""
        self._number = 0
        """Of the latest call."""
        self.span = trace.get_current_span()
        """What the calls are made for."""

    def end(self, error: GatewayError) -> None:
        """Cancel the call. Whoever waits for the answer gets `error`."""
        self._ended_by = error
        if self._call is not None:
            self._call.cancel()

    def pause(self, turn: "asyncio.Future[None]") -> None:
        """Cancel the call, and make the next one when `turn` is done. See `admission.Call`."""
        self._turn = turn
        if self._call is not None:
            self._call.cancel()

    async def _go_on(self) -> None:
        """Return at once, or if the call is paused, when it may go on. Raises `GatewayError`."""
        while (turn := self._turn) is not None:
            try:
                with within("gateway.paused", self.span):
                    async with asyncio.timeout(self._left()):
                        await asyncio.shield(turn)
            except TimeoutError:
                raise _late() from None
            if self._turn is turn:
                self._turn = None

    async def _put_images(self, images: KeptImages) -> None:
        """Put the request's images where the services find them. Raises `GatewayError`."""
        tries = 0
        try:
            async with asyncio.timeout(self._left()):
                while self._ended_by is None:
                    try:
                        await images.put(self._left())
                        break
                    except BusAway as error:
                        tries += 1
                        if tries == PUT_TRIES:
                            logger.warning("images cannot be put into Redis: %s", error)
                            raise Unavailable("The message queue cannot be reached.") from None
                    await asyncio.sleep(PUT_AGAIN_SECONDS)
        except TimeoutError:
            raise _late() from None
        if self._ended_by is not None:
            raise self._ended_by

    def close(self) -> None:
        """Nobody waits for the answer any more."""

    @property
    def _finished(self) -> bool:
        """All of the answer has come, however the last call ended."""
        return False

    @asynccontextmanager
    async def _attempt(
        self,
        method: Callable[..., Any],
        request: TextRequest | EmbedRequest | TokenizeRequest,
        resumption: Resumption,
        names: Mapping[str, str],
    ) -> AsyncIterator[Any]:
        """Start a call. Its timeout is the time that is left.

        Swallows the call's failure when another call can help, `end` or `pause` was called, or all has come:
        the caller looks at `_ended_by` and `_finished`. Raises `GatewayError`; `names`: see `from_rpc`.
        """
        if not self._counted:
            self._counted = True
            self._parts.under_way += 1
        self._number += 1
        asked = request.request if isinstance(request, TokenizeRequest) else request
        call: Any = None
        try:
            with calling(_METHODS[type(request)], self.span, self._number) as attempted:
                metadata = (*carried(attempted), *resumption.metadata())
                timeout = self._left()
                call = self._call = method(request, metadata=metadata, timeout=timeout, wait_for_ready=True)
                yield call
        except grpc.aio.AioRpcError as error:
            if self._ended_by is None and not self._finished:
                await self._retry_or_raise(asked.request_id, resumption, error, names)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            left = task is not None and task.cancelling() > 0  # by whoever waits for the answer
            if left or (self._ended_by is None and self._turn is None):
                raise
        finally:
            if call is not None:
                call.cancel()

    def _left(self) -> float | None:
        return None if self._due is None else max(0.001, self._due - time.monotonic())

    async def _retry_or_raise(
        self, request_id: str, resumption: Resumption, error: grpc.aio.AioRpcError, names: Mapping[str, str]
    ) -> None:
        """Return if another call may succeed; otherwise raise the client's `GatewayError`.

        `names`: see `from_rpc`.
        """
        self._counted = False
        self._parts.under_way -= 1
        # Otherwise a request with more parts than the queue admits would never be served.
        if self._parts.under_way and (seconds := retry_after(error)):
            await asyncio.sleep(min(seconds, self._left() or seconds))
            return
        try:
            resumption.retry_or_raise(error)
        except grpc.aio.AioRpcError:
            # Its frames hold the request, and one of them holds it: only the collector of garbage would find
            # these.
            raise from_rpc(error, request_id, names) from error.with_traceback(None)
