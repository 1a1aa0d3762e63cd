"""API keys: a request of the API without a valid key is refused."""

import hashlib
from collections.abc import Mapping
from hmac import compare_digest

from fastapi import Request
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import Unauthorized
from gateway.http.tracing import record

GUARDED = "/v1/"
"""Paths that begin with this need a key."""


class Guard:
    """Middleware: checks the API key, and sets the state `tenant` to the tenant that it belongs to."""

    def __init__(self, app: ASGIApp, tenants: Mapping[str, str]) -> None:
        """`tenants`: tenant by API key."""
        self._app = app
        self._tenants = [(_digest(key), name) for key, name in tenants.items()]

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
        """The key's tenant; None for an unknown key. The time it takes tells nothing of the keys."""
        scheme, _, key = authorization.partition(" ")
        given, tenant = _digest(key.strip()), None
        for digest, name in self._tenants:
            if compare_digest(digest, given):
                tenant = name
        return tenant if scheme.lower() == "bearer" else None


def tenant_of(request: Request) -> str:
    """The tenant that the request's API key belongs to; empty if the gateway has no keys."""
    return str(getattr(request.state, "tenant", ""))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
