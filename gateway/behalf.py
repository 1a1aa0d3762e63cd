"""Whom the gateway makes requests for that nobody waits for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Behalf:
    """Whom a request is made for that the gateway makes of itself."""

    tenant: str
    account: str
    """The key's digest; without keys the tenant."""
    keyed: bool
