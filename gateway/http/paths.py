"""Methods and paths that mean the same: HEAD and GET, `/v1/models` and `/v1/models/`; and OPTIONS."""

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


class UsualForm:
    """Middleware: routes HEAD as GET, and a path with slashes at its end as one without.

    HEAD is answered like GET, without the body (RFC 9110, section 9.3.2); the server leaves out the body and
    keeps its length. Load balancers use it. A redirection to the path without a slash would lose the body or
    the key with some clients.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            method, path = scope["method"], scope["path"]
            usual = path.rstrip("/") or "/"
            if method == "HEAD" or usual != path:
                scope = {**scope, "method": "GET" if method == "HEAD" else method, "path": usual}
        await self._app(scope, receive, send)


def options_of(refusal: HTTPException) -> Response:
    """The answer to OPTIONS (RFC 9110, section 9.3.7). The router refuses it and names the methods."""
    methods = {name.strip() for name in (refusal.headers or {}).get("Allow", "").split(",") if name.strip()}
    methods |= {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
    return Response(status_code=204, headers={"Allow": ", ".join(sorted(methods))})
