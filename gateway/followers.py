"""Requests that wait for what others make or have, each at connections of its own."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Overloaded

MAX_FOLLOWERS = 128
"""Requests of one kind that wait in a gateway at once. A tenant may have as many as it leaves free, alone
half of all."""


class Followers:
    """Counts the requests of one kind that wait, by tenant."""

    def __init__(
        self,
        most: int = MAX_FOLLOWERS,
        refusal: str = "Too many requests wait for the answers of others.",
    ) -> None:
        self._most, self._refusal = most, refusal
        self._by_tenant: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._by_tenant.total()

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """A place for one request of the tenant's. Raises `Overloaded` if there is none."""
        if self._by_tenant[tenant] + 1 > self._most - len(self) - 1:
            raise Overloaded(self._refusal)
        self._by_tenant[tenant] += 1
        try:
            yield
        finally:
            self._by_tenant[tenant] -= 1
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]
