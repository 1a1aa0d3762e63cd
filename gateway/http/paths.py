"""Methods and paths that mean the same: HEAD and GET, `/v1/models` and `/v1//models/`; and OPTIONS."""

import re
from collections.abc import Iterable

from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

_BEGINNING = re.compile(r"^/+(?:(v1|v2|api)/+)?")
"""Up to where a client appends a path to its base URL. Further on a model's name may have slashes."""

_OF_AZURE = re.compile(
    r"^/openai/(?:v1/|deployments/(?P<model>.+?)/(?=(?:chat/)?completions$|embeddings$))?", re.DOTALL
)
"""What Azure's paths have in place of `/v1/`."""

_OWN_OF_OTHERS = dict.fromkeys(("/generate", "/generate_stream", "/completion"), "/v1/completions")
"""By the paths of TGI, SGLang and llama.cpp, what does the same here."""


class UsualForm:
    """Middleware: routes HEAD as GET, and a path without the slashes that are too many: at its beginning,
    behind its version, and at its end. Base URLs that end with a slash make such paths. Azure's paths become
    those of OpenAI; the state `deployment` is the model that one names.

    HEAD is answered like GET, without the body (RFC 9110, section 9.3.2); the server leaves out the body and
    keeps its length. Load balancers use it. A redirection to the path without a slash would lose the body or
    the key with some clients.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            path = _BEGINNING.sub(_with_one, scope["path"]).rstrip("/") or "/"
            if (found := _OF_AZURE.match(path)) is not None:
                path = f"/v1/{path[found.end() :]}"
                if found["model"]:
                    scope.setdefault("state", {})["deployment"] = found["model"]
            if path != scope["path"]:
                scope = {**scope, "path": path}
            if scope.get("method") == "HEAD":
                scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


def _with_one(beginning: re.Match[str]) -> str:
    return f"/{beginning[1]}/" if beginning[1] else "/"


def methods_at(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """The methods of a path, for the header `Allow`. The router's own names those of one route alone."""
    found = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
    methods = {"OPTIONS"}.union(*(getattr(route, "methods", None) or () for route in found))
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def meant_by(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """The path that a client means whose base URL lacks `/v1`, or has too much before it; "" if none.

    Or that means another server's own path: LM Studio has `/api/v0` for `/v1`.
    """
    path: str = scope["path"]
    here = _OWN_OF_OTHERS.get(path, f"/v1{path.removeprefix('/api/v0')}")
    found = (path.rfind(start) for start in ("/v1/", "/api/"))
    for meant in (here, *(path[place:] for place in found if place > 0)):
        if any(route.matches({**scope, "path": meant})[0] is not Match.NONE for route in routes):
            return meant
    return ""


def options_of(methods: str) -> Response:
    """The answer to OPTIONS (RFC 9110, section 9.3.7)."""
    return Response(status_code=204, headers={"Allow": methods})
