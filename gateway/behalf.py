"""On whose behalf the gateway makes requests itself, as it does for jobs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Behalf:
    """Who has asked for a job: its requests count as theirs."""

    tenant: str
    account: str
    """The key's digest; without keys the tenant."""
    keyed: bool
    """Whether it was asked for with an API key."""
