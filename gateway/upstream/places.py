"""What requests take of the places for calls, counted by tenant and user: see `admission.py`."""

from collections import Counter
from typing import NamedTuple

USER_RESERVE = 8
"""What one user of a tenant leaves free for the others: its own part divided by this."""


class Asker(NamedTuple):
    """On whose behalf a request is made."""

    tenant: str = ""
    user: str = ""


class Load(NamedTuple):
    """What a request takes of a pool."""

    calls: int = 1
    """Calls of the services behind the gateway that run at once."""
    size: int = 0
    """Bytes of what is sent to them."""


ONE_CALL = Load()


class Resource:
    """One kind of thing, and how much of it each tenant and user holds."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.of_tenant: Counter[str] = Counter()
        self.of_user: Counter[Asker] = Counter()
        self.total = 0

    @property
    def free(self) -> int:
        """How much nobody holds; below 0 if they hold more than there is."""
        return self.capacity - self.total

    def weight(self, asker: Asker) -> float:
        """What the tenant holds, and a part of what this user of it holds."""
        return self.of_tenant[asker.tenant] + self.of_user[asker] / USER_RESERVE

    def has_room(self, asker: Asker) -> bool:
        """Whether the tenant may hold more, and this user of it."""
        return self.weight(asker) < self.free

    def may_have_room(self, tenant: str) -> bool:
        """Whether there may be users of the tenant that `has_room`: those that hold nothing would."""
        return self.of_tenant[tenant] < self.free

    def add(self, asker: Asker, amount: int) -> None:
        """Take `amount`, or give it back if it is negative."""
        self.total += amount
        self.of_tenant[asker.tenant] += amount
        self.of_user[asker] += amount
        if not self.of_tenant[asker.tenant]:
            del self.of_tenant[asker.tenant]
        if not self.of_user[asker]:
            del self.of_user[asker]

    @property
    def empty(self) -> bool:
        return not (self.of_tenant or self.of_user or self.total)


class Pool:
    """Calls and bytes. A request that finds room takes what it needs, even if that is more than is free."""

    def __init__(self, calls: int, size: int) -> None:
        self.calls, self.size = Resource(calls), Resource(size)

    def has_room(self, asker: Asker) -> bool:
        return self.calls.has_room(asker) and self.size.has_room(asker)

    def take(self, asker: Asker, load: Load) -> None:
        self.calls.add(asker, load.calls)
        self.size.add(asker, load.size)

    def give_back(self, asker: Asker, load: Load) -> None:
        self.calls.add(asker, -load.calls)
        self.size.add(asker, -load.size)

    @property
    def empty(self) -> bool:
        return self.calls.empty and self.size.empty
