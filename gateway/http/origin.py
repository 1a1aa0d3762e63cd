"""Web pages: which hosts the gateway answers to, and which pages may ask it.

A browser sends requests for every page that it shows. Two checks keep foreign pages out of a gateway that
listens on loopback or in a private network:

- `Host` must be an IP address, a name that public DNS does not have (`localhost`, `box.local`), one without a
  dot (`box`), of which it has hardly any, the host that the gateway listens on, or an allowed one. In DNS
  rebinding a page's own name resolves to the gateway's address; the browser then still sends that name. Where
  API keys are needed it may be any: such a page has no key.
- `Origin`, which browsers send with every request that a page's script or form makes of another server, must
  be the gateway itself or an allowed one.

Programs other than browsers send no `Origin`.
"""

import ipaddress
import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import BadRequest, Forbidden, GatewayError, Unavailable
from gateway.http.caller import ADDRESSES
from gateway.http.error_shape import refusal as refused
from gateway.http.key_ring import KeyRing
from gateway.http.meter import RATE_HEADERS

ANY = "*"
MOST_TOLD = 64
"""Pages whose refusal is logged within `TOLD_SECONDS`: their own scripts cannot read it."""
TOLD_SECONDS = 3600.0
_PORT = re.compile(r":\d*$")
_NOT_PUBLIC = re.compile(r"[\w-]+|[\w.-]+\.(localhost|local|internal|home\.arpa)", re.ASCII)
"""Names that public DNS gives no address: those below what is reserved (RFC 6761, 6762 and 8375; ICANN's
resolution 2024.07.29.06), and those without a dot, but for a few countries' top-level domains (RFC 7085)."""
_EXPOSED = ("X-Request-Id", "request-id", "X-Quire-Ignored", "Idempotent-Replayed", "Retry-After")
"""Headers of answers that pages may read, beside those of limits."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Access:
    """The hosts that the gateway answers to, and the pages that may ask it."""

    hosts: frozenset[str] = frozenset()
    """Names without a port, beside IP addresses and names that public DNS does not have. `*.example.com` is
    every name below example.com, and `*` any name."""
    origins: frozenset[str] = frozenset()
    """Origins of foreign pages that may ask, as in `https://app.example.com`; `*` is any page."""

    @classmethod
    def of(cls, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> "Access":
        """With names in whatever case."""
        return cls(frozenset(map(str.lower, hosts)), frozenset(map(str.lower, origins)))

    def answers_to(self, host: str) -> bool:
        """`host`: in lower case, with or without a port."""
        name = _PORT.sub("", host)
        if name in self.hosts or ANY in self.hosts or _is_address(name) or _NOT_PUBLIC.fullmatch(name):
            return True
        return any(name.endswith(one[1:]) for one in self.hosts if one.startswith("*."))

    def may_ask(self, origin: str, host: str) -> bool:
        """Whether pages of `origin` may ask the gateway, which they call `host`. Both in lower case."""
        if origin in self.origins or ANY in self.origins:
            return True
        # The scheme may differ: a proxy in front may speak TLS.
        try:
            return urlsplit(origin).netloc == host
        except ValueError:
            return False


@lru_cache(ADDRESSES)
def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


class OriginGuard:
    """Middleware: refuses requests that `access` does not allow."""

    def __init__(self, app: ASGIApp, access: Access, keys: KeyRing) -> None:
        self._app, self._access, self._keys = app, access, keys
        self._told: set[str] = set()
        self._told_from = time.monotonic()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
            refusal = await self.refusal(scope["http_version"], hosts, origins)
            if refusal is not None:
                await refused(refusal, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def refusal(self, version: str, hosts: list[str], origins: list[str]) -> GatewayError | None:
        """Why a request is refused; None if it is not.

        `version`: of HTTP. `hosts`, `origins`: values of its headers `Host` and `Origin`.
        """
        if len(hosts) != 1:
            if not hosts and version == "1.0":
                return None  # it is older than the header; no browser sends it
            return BadRequest("A request has one 'Host' header.", code="invalid_http")
        host = hosts[0].strip().lower()
        if not (self._access.answers_to(host) or await self._needs_a_key()):
            return Forbidden(
                f"This server does not answer to the host '{host[:200]}': QUIRE_ALLOWED_HOSTS can name it.",
                code="host_not_allowed",
            )
        foreign = (one for one in origins if not self._access.may_ask(one.strip().lower(), host))
        origin = next(foreign, None)
        if origin is None:
            return None
        origin = origin[:200]
        self._tell(origin)
        message = f"Pages of '{origin}' may not ask this server: QUIRE_ALLOWED_ORIGINS can name them."
        return Forbidden(message, code="origin_not_allowed")

    def _tell(self, origin: str) -> None:
        """Log that pages of `origin` are refused, unless that was done lately."""
        if (now := time.monotonic()) > self._told_from + TOLD_SECONDS:
            self._told.clear()
            self._told_from = now
        if origin not in self._told and len(self._told) < MOST_TOLD:
            self._told.add(origin)
            logger.warning("refused pages of %r: QUIRE_ALLOWED_ORIGINS can name them", origin)

    async def _needs_a_key(self) -> bool:
        try:
            return await self._keys.needed()
        except Unavailable:  # that is not known
            return False


def cross_origin(app: ASGIApp, access: Access) -> CORSMiddleware:
    """Middleware: tells browsers that pages of the allowed origins may read answers."""
    return CORSMiddleware(
        app,
        allow_origins=sorted(access.origins),
        allow_methods=["GET", "HEAD", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=[*_EXPOSED, *RATE_HEADERS],
    )
