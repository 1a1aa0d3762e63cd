"""The WebSocket /v1/stream: several streamed answers at once."""

from fastapi import APIRouter, WebSocket

from gateway.http.socket_session import SocketSession

PROTOCOL = "quire"
"""The subprotocol that the gateway speaks."""
KEY_PROTOCOL = "quire-key."
"""Begins a subprotocol that is an API key: browsers let pages set no header."""


def router() -> APIRouter:
    routes = APIRouter()

    @routes.websocket("/v1/stream")
    async def stream(socket: WebSocket) -> None:
        """Requests and their answers in frames: see `gateway.http.frames`."""
        offered = socket.scope["subprotocols"]
        keys = [one.removeprefix(KEY_PROTOCOL) for one in offered if one.startswith(KEY_PROTOCOL)]
        await socket.accept(PROTOCOL if PROTOCOL in offered else None)
        await SocketSession(socket.app, socket, keys[0] if keys else None).run()

    return routes
