"""Who makes a request: the tenant of an API key, or without keys an address."""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from starlette.requests import Request

from gateway.behalf import Behalf
from gateway.errors import Forbidden
from gateway.http.meter import Visit
from ops.runtime.api_keys import Right
from ops.runtime.limits import Limits

PREFIX_BITS = 64
"""An IPv6 client usually has a whole network of this prefix length for itself, and any address in it."""

ADDRESSES = 4096
"""Addresses of which it is remembered what they are: a client asks again and again."""

NO_LIMITS = Limits()


@dataclass(frozen=True)
class Caller:
    """Who makes a request, and what it may ask for."""

    tenant: str = ""
    """The API key's tenant; without keys the address, of IPv6 its prefix."""
    keyed: bool = False
    """Whether there was an API key."""
    limits: Limits = NO_LIMITS
    account: str = ""
    """The key's digest; without keys the tenant."""
    late: bool = False
    """Requests that name no priority have the last one: they are a job's."""
    visit: Visit | None = None
    """This request of the caller's, if they are counted."""
    rights: frozenset[Right] = frozenset()
    """What it may do besides asking the models."""

    async def begin(self, tokens: int, used: Callable[[], int]) -> None:
        """Count the request: see `Visit.begin`."""
        if self.visit is not None:
            await self.visit.begin(tokens, used)

    def check_inside(self) -> None:
        """Raise `Forbidden` unless the caller may look inside the deployment."""
        if "inside" not in self.rights:
            whose = "This API key may" if self.keyed else "Without an API key only this machine may"
            hint = "a key that may is made with `quire keys add NAME --rights inside`"
            raise Forbidden(f"{whose}{' not' * self.keyed} look inside: {hint}.", code="no_right")

    def may_read(self, tenant: str) -> bool:
        """Whether the caller, who may look inside, may read what a tenant asks and is answered."""
        return "text" in self.rights or (self.keyed and tenant == self.tenant)

    @property
    def behalf(self) -> Behalf:
        """For requests that are to be made later."""
        return Behalf(self.tenant, self.account, self.keyed)

    def salt(self, own: str) -> str:
        """The cache salt of a request, which keeps tenants with keys apart: a cached prefix would tell what
        another asked. `own`: the salt that the request names."""
        return f"{self.tenant}:{own}" if self.keyed else own


@lru_cache(ADDRESSES)
def tenant_at(address: str) -> str:
    """The tenant that an address is without a key, as in "192.0.2.7" or "2001:db8::/64"."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]  # a Unix socket has none
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, PREFIX_BITS), strict=False))


@lru_cache(ADDRESSES)
def at_loopback(address: str) -> bool:
    """Whether a client at this address sits at this machine."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def caller_of(request: Request) -> Caller:
    """Who makes the request, as the guard found out."""
    caller: Caller = request.state.caller
    return caller
