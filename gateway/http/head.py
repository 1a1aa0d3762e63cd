"""HEAD: what GET would say, without the body (RFC 9110, section 9.3.2). Load balancers ask so."""

from starlette.types import ASGIApp, Receive, Scope, Send


class Heads:
    """Middleware: a HEAD is routed as a GET. The server leaves the body out, and keeps its length."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
