"""The WebSocket /v1/stream: several streamed answers at once."""

import contextlib

from fastapi import APIRouter, WebSocket

from gateway.errors import Unauthorized, Unavailable
from gateway.http.body_memory import BodyMemory, Held
from gateway.http.caller import tenant_at
from gateway.http.key_ring import KeyRing, authorization_in
from gateway.http.socket_session import SocketSession

PROTOCOL = "quire"
"""The subprotocol that the gateway speaks."""
KEY_PROTOCOL = "quire-key."
"""Begins a subprotocol that is an API key: browsers let pages set no header."""


def router(keys: KeyRing, bodies: BodyMemory) -> APIRouter:
    """`bodies`: counts large messages, which come from those alone whom `keys` let in."""
    routes = APIRouter()

    @routes.websocket("/v1/stream")
    async def stream(socket: WebSocket) -> None:
        """Requests and their answers in frames: see `gateway.http.frames`."""

        async def shown(authorization: str) -> str:
            """The tenant whom a key lets in, and then large messages are held; "" for an invalid key."""
            with contextlib.suppress(Unauthorized, Unavailable):  # its requests are told so
                found = await keys.find(authorization)
                client = tenant_at(socket.client.host) if socket.client else ""
                held = Held(bodies, found[1].tenant if found else client)
                socket.state.hold_messages(held)
                return held.tenant
            return ""

        offered = socket.scope["subprotocols"]
        own = [one.removeprefix(KEY_PROTOCOL) for one in offered if one.startswith(KEY_PROTOCOL)]
        key = own[0] if own else None
        tenant = await shown(authorization_in(socket.headers) if key is None else f"Bearer {key}")
        await socket.accept(PROTOCOL if PROTOCOL in offered else None)
        await SocketSession(socket.app, socket, key, tenant, shown).run()

    return routes
