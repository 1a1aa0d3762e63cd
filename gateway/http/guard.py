"""Who makes a request: with API keys, one without a valid key is refused."""

from dataclasses import replace

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.behalf import Behalf
from gateway.errors import GatewayError
from gateway.http.caller import Caller, at_loopback, tenant_at
from gateway.http.error_shape import refusal
from gateway.http.key_ring import KeyRing, authorization_in
from gateway.http.meter import Meter, Visit
from ops.runtime.api_keys import Key, Right
from ops.runtime.limits import Limits

GUARDED = (
    *("/v1/", "/v2/", "/api/", "/tokenize", "/detokenize", "/rerank", "/score", "/classify", "/pooling"),
    *("/load", "/metrics", "/infill", "/completion", "/embed", "/info", "/props"),
)
"""Paths that begin with one of these need a key."""

OPEN = "/v2/health/"
"""Paths that begin with this need none."""

_ALL: frozenset[Right] = frozenset({"inside", "text"})
_OF_PROXIES = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers that a proxy adds."""


class Guard:
    """Middleware: sets the state `caller` to who makes the request. Checks the API key, if there are keys."""

    def __init__(self, app: ASGIApp, keys: KeyRing, limits: Limits, meter: Meter) -> None:
        """`limits`: of every caller whose key gives no others."""
        self._app = app
        self._keys = keys
        self._limits = limits
        self._meter = meter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path.startswith(GUARDED) and not path.startswith(OPEN):
            try:
                caller = await self._caller(scope)
            except GatewayError as error:
                await refusal(error, scope)(scope, receive, send)
                return
            scope.setdefault("state", {})["caller"] = caller
            if caller.visit is not None:
                try:
                    await self._app(scope, receive, caller.visit.with_headers(send))
                finally:
                    await caller.visit.end()
                return
        await self._app(scope, receive, send)

    async def _caller(self, scope: Scope) -> Caller:
        """Who makes the request. Raises `Unauthorized`, or `Unavailable` if the keys are not known."""
        if (behalf := scope.get("state", {}).get("behalf")) is not None:
            return await self._on_behalf(behalf, scope["state"].get("late", False))
        found = await self._keys.find(authorization_in(Headers(scope=scope)))
        if found is None:
            client = scope.get("client")
            tenant = tenant_at(client[0]) if client else ""
            return self._keyless(tenant, _rights_at(scope))
        return self._keyed(*found)

    async def _on_behalf(self, behalf: Behalf, late: bool) -> Caller:
        """The caller that a job makes a request for, with the limits that the key has now."""
        found = await self._keys.named(behalf.account if behalf.keyed else "")
        return replace(self._keyless(behalf.tenant) if found is None else self._keyed(*found), late=late)

    def _keyless(self, tenant: str, rights: frozenset[Right] = frozenset()) -> Caller:
        visit = self._visit(tenant, self._limits)
        return Caller(tenant, False, self._limits, tenant, visit=visit, rights=rights)

    def _keyed(self, digest: str, key: Key) -> Caller:
        limits = self._limits.replaced_by(key.limits)
        return Caller(key.tenant, True, limits, digest, visit=self._visit(digest, limits), rights=key.rights)

    def _visit(self, account: str, limits: Limits) -> Visit | None:
        return Visit(self._meter, account, limits) if limits.counted else None


def _rights_at(scope: Scope) -> frozenset[Right]:
    """The rights of one without a key: all for who sits at this machine, none for others.

    A proxy on this machine that asks for others says so in a header.
    """
    client, headers = scope.get("client"), Headers(scope=scope)
    here = client is not None and at_loopback(client[0])
    return _ALL if here and not any(name in headers for name in _OF_PROXIES) else frozenset()
