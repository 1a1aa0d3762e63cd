"""The head of a response goes out with what follows it: each write is a system call, and wakes the client.

uvicorn writes the head by itself. The first part of the body comes in the same turn of the event loop, if it
is there already.
"""

import asyncio

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class HeldHead:
    """Stands for the transport of one request until the head of its response has been written."""

    def __init__(self, cycle: RequestResponseCycle, loop: asyncio.AbstractEventLoop) -> None:
        self._cycle, self._transport, self._loop = cycle, cycle.transport, loop
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            self._release(data)
        elif self._cycle.response_started:
            self._head = data
            self._loop.call_soon(self._release)  # in case nothing follows at once
        else:  # 100 Continue
            self._transport.write(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._release()
        self._transport.close()

    def _release(self, data: bytes = b"") -> None:
        head, self._head = self._head, b""
        if head:
            self._cycle.transport = self._transport
            if not self._transport.is_closing():  # the client may have left in this turn
                self._transport.write(head + data)
