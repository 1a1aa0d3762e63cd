"""A bound on the bytes of request bodies that a gateway holds in all its connections together. Large answers
that clients have not taken yet count among them.

A tenant may hold as much as it leaves free: alone half of all, beside another one a third. So a tenant that
fills what it may have does not keep others out. Many together could: each takes half of what is left, and
endless answers keep it. So beside all this there is a reserve for tenants that hold little.
"""

from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import Overloaded, TooLarge

MAX_BODY_BYTES = 24 * 2**20
"""Bytes of one request's body, compressed or not: some photos in base64."""
MAX_FRAME_BYTES = 4 * 2**20
"""Bytes of a message on a WebSocket."""
MAX_HELD_BYTES = 256 * 2**20
"""Bytes of the bodies of all requests that have not been answered. A prompt is kept until then: another
process may need it. What is made of a body takes two to seven times as much memory as the body."""
SMALL = 64 * 2**10
"""Bytes that a tenant may hold even if all other memory is taken, as long as the reserve lasts."""
RESERVE = 1024 * SMALL
"""Bytes for this beside the others."""


class BodyMemory:
    """Counts the bytes that all requests hold, in all and by tenant."""

    def __init__(self, most: int = MAX_HELD_BYTES, reserve: int = RESERVE, small: int = SMALL) -> None:
        self.held, self._most, self._reserve, self._small = 0, most, reserve, small
        self._by_tenant: Counter[str] = Counter()

    def check(self, tenant: str, size: int) -> None:
        """Raises `Overloaded` if there is no room for `size` more bytes of the tenant's."""
        own = self._by_tenant[tenant] + size
        if own <= self._small and self.held + size <= self._most + self._reserve:
            return
        if own > self._most - self.held - size:
            raise Overloaded("The bodies of requests under way take all memory for bodies: try again.")

    def add(self, tenant: str, size: int) -> None:
        """Count `size` more bytes, or fewer if it is negative."""
        self.held += size
        self._by_tenant[tenant] += size
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]


class Held:
    """The part of one request."""

    def __init__(self, memory: BodyMemory, tenant: str = "") -> None:
        self._memory, self.tenant, self.size = memory, tenant, 0

    def announced(self, length: str) -> None:
        """Raises `TooLarge`, and `Overloaded` as `expect`. `length`: the header `Content-Length`, or ""."""
        if length.isdecimal():
            if len(length) > 9 or int(length) > MAX_BODY_BYTES:
                raise body_too_large()
            self.expect(int(length))

    def expect(self, size: int) -> None:
        """Raises `Overloaded` if there is no room for a body of that size.

        The room is not kept: a client that announces a body and does not send it would hold it from others.
        """
        self._memory.check(self.tenant, size)

    def grow(self, size: int) -> None:
        """Hold `size` more bytes, which have come. Raises `Overloaded` if there is no room for them."""
        self._memory.check(self.tenant, size)
        self.add(size)

    def add(self, size: int) -> None:
        """Hold `size` more bytes, for which it is too late to be refused."""
        self._memory.add(self.tenant, size)
        self.size += size

    def cover(self, size: int) -> int:
        """Hold what a piece of the answer has beyond what is held, if that is much: a tenant that has filled
        its part would have twice as much. Returns the bytes that are held in addition.

        Not of pages that are open to all: who has no key would take the room from those who have one.
        """
        more = size - self.size
        if more <= SMALL or not self.tenant:
            return 0
        self.add(more)
        return more

    def release(self) -> None:
        self._memory.add(self.tenant, -self.size)
        self.size = 0


def body_too_large() -> TooLarge:
    return TooLarge(f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB.")


class HoldsBodies:
    """Middleware: the state `body` counts what the request's body holds, or its answer if that is much
    larger, until the client has taken the answer."""

    def __init__(self, app: ASGIApp, memory: BodyMemory) -> None:
        self._app, self._memory = app, memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        caller = state.get("caller")
        held = state["body"] = Held(self._memory, caller.tenant if caller else "")

        async def send_held(message: Message) -> None:
            held.cover(len(message.get("body", b"")))
            await send(message)  # which returns when the client has taken the last piece

        try:
            await self._app(scope, receive, send_held)
        finally:
            held.release()
