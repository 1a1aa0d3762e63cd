"""Who may ask: without an API key nobody passes to the API."""

import hashlib
from collections.abc import Mapping
from hmac import compare_digest

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Unauthorized
from gateway.http.tracing import record

GUARDED = "/v1/"
"""Begins every path that needs a key."""


class Guard:
    """Middleware: asks for a key, and notes whose it is."""

    def __init__(self, app: ASGIApp, names: Mapping[str, str]) -> None:
        """`names`: the tenant of each key."""
        self._app = app
        self._tenants = [(_digest(key), name) for key, name in names.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(GUARDED):
            tenant = self._tenant(Headers(scope=scope).get("authorization", ""))
            if tenant is None:
                refusal = Unauthorized("A valid API key is needed: `Authorization: Bearer KEY`.")
                if scope["method"] == "POST":
                    record(refusal)
                await refusal.response()(scope, receive, send)
                return
            scope.setdefault("state", {})["tenant"] = tenant
        await self._app(scope, receive, send)

    def _tenant(self, authorization: str) -> str | None:
        """Takes as long whichever key it is, and however much of it is right."""
        scheme, _, key = authorization.partition(" ")
        given, tenant = _digest(key.strip()), None
        for digest, name in self._tenants:
            if compare_digest(digest, given):
                tenant = name
        return tenant if scheme.lower() == "bearer" else None


def tenant_of(request: Request) -> str:
    """In whose name the request's key was given; empty where there are no keys."""
    return str(getattr(request.state, "tenant", ""))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
