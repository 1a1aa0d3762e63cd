"""What the transport needs of a queue. `RedisBus` is the real one, `MemoryBus` its reference.

Names of streams are relative: `calls:<Service>[:<pool>]` is a front door with one consumer group of
competing readers; `inbox:<process-id>` has one reader; `dead-letters` has none.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

DEAD_LETTERS = "dead-letters"
WITHDRAWN = b""
"""Payload of an entry that was deleted while it was pending: there is nothing to do but to acknowledge it."""

Added = Callable[[str], None]


class Received(NamedTuple):
    """An entry as read: its id, and its payload or None if it carries none."""

    id: str
    payload: bytes | None


class Letter(NamedTuple):
    """A malformed entry, and why it is one."""

    stream: str
    id: str
    reason: str
    payload: bytes


@dataclass(slots=True)
class Batch:
    """Writes that go out together, in order."""

    adds: list[tuple[str, bytes, Added | None]] = field(default_factory=list)
    """(stream, payload, called with the entry's id)."""
    acks: list[tuple[str, str]] = field(default_factory=list)
    """(door, entry id): taken for good."""
    deletes: list[tuple[str, str]] = field(default_factory=list)
    """(door, entry id): wanted no longer."""
    trims: list[tuple[str, str]] = field(default_factory=list)
    """(inbox, entry id): what is below has been read."""
    letters: list[Letter] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.adds or self.acks or self.deletes or self.trims or self.letters)


class Link(Protocol):
    """One process's connection to the bus."""

    def post(self, batch: Batch) -> None:
        """Write a batch after all earlier ones. It is kept until it is answered and sent again after
        a lost connection, so that an entry may arrive twice but is never lost."""

    async def drained(self) -> None:
        """Return once few batches are unanswered: what a fast writer waits for."""

    def inbox(self) -> AsyncIterator[Sequence[Received]]:
        """Everything that comes to this process's inbox, in order."""
        ...

    async def join(self, door: str) -> None:
        """Be known as one who takes calls at a door. Raises `BusAway`."""

    async def take(self, door: str, count: int) -> Sequence[Received]:
        """Wait for calls at a door and take up to `count` of them. They stay pending until acknowledged.

        If it is cancelled, what it had been given comes again with the next `take`.
        """
        ...

    async def orphans(self, door: str) -> Sequence[Received]:
        """Take over what is pending for processes that hold no lease any more. Raises `BusAway`."""
        ...

    async def trim(self, door: str) -> None:
        """Drop the entries of a door below what is still pending or unread. Raises `BusAway`."""

    async def leave(self, door: str) -> None:
        """Compete for the calls of a door no longer. Raises `BusAway`."""

    async def served(self, door: str) -> bool:
        """Whether a process that holds a lease takes calls at the door. Raises `BusAway`."""
        ...

    async def hold(self, value: bytes, seconds: float, anew: bool) -> bool:
        """Set this process's lease; without `anew` only if it still has it, else False. Raises `BusAway`."""
        ...

    async def holders(self, ids: Sequence[str]) -> Sequence[bytes | None]:
        """The leases of some processes; None where there is none. Raises `BusAway`."""
        ...

    async def all_holders(self) -> dict[str, bytes]:
        """All leases by process id. Raises `BusAway`."""
        ...

    async def close(self, gone: bool) -> None:
        """Disconnect; `gone` also gives up the lease and the inbox."""


class Bus(Protocol):
    """Where processes meet."""

    async def connect(self, process_id: str) -> Link:
        """A link for one process. Raises `BusAway`."""
        ...
