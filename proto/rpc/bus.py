"""What the transport needs of a queue. `RedisBus` is used in deployments, `MemoryBus` is its reference.

Streams have relative names. `calls:<Service>[:<pool>]` is a front door: any process adds calls, the
service's replicas take them, competing in one consumer group. `inbox:<process-id>` has one reader.
`dead-letters` has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

DEAD_LETTERS = "dead-letters"
DEAD_LETTERS_KEPT = 10_000
START = "0-0"
"""Below every entry's id."""


def inbox_of(process_id: str) -> str:
    return f"inbox:{process_id}"


def door_of(name: str, pool: str = "") -> str:
    """The front door of a service or method, named as in "package.Service" or "/package.Service/Method"."""
    service = name.strip("/").partition("/")[0].rpartition(".")[2]
    return f"calls:{service}:{pool}" if pool else f"calls:{service}"


class Received(NamedTuple):
    """An entry as read."""

    id: str
    payload: bytes | None
    """None if the entry does not have exactly the field that our entries have."""


class Letter(NamedTuple):
    """A malformed entry, with the reason why it could not be read."""

    stream: str
    id: str
    reason: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Writes that go out together, in order of the fields."""

    number: int
    """1, 2, 3, ... among the sender's batches."""
    opens: Sequence[tuple[str, bytes]] = ()
    """Beginnings of calls: (door, payload)."""
    entries: Sequence[tuple[str, bytes]] = ()
    """(process id, payload) for that process's inbox; dropped if there is no such inbox any more."""
    settled: Sequence[tuple[str, str]] = ()
    """(door, entry id): accepted, refused or withdrawn. Pending no more, and gone from the stream."""
    letters: Sequence[Letter] = ()


class Link(Protocol):
    """One process's connection to the bus. Methods raise `BusAway` unless their docstring says otherwise."""

    async def publish(self, batch: Batch, again: bool = False) -> Sequence[str]:
        """Write a batch; returns the ids of its `opens`, or nothing if the ids are no longer known.

        After `BusAway` it is unknown whether the batch took effect: publish it `again`, before any other
        batch. Then an entry may be in an inbox twice, but no call is at its door twice.
        """
        ...

    async def read(self, after: str) -> Sequence[Received]:
        """Wait for entries in this process's inbox above an id. May return nothing."""
        ...

    async def tail(self) -> str:
        """Id of the newest entry in this process's inbox."""
        ...

    async def trim(self, upto: str) -> None:
        """Drop what this process has read of its inbox: everything up to an id."""

    async def join(self, door: str) -> None:
        """Be one of the replicas that compete for a door's calls."""

    async def take(self, door: str, count: int) -> Sequence[Received]:
        """Wait for calls at a door and take up to `count` of them; they are pending until settled.

        May return nothing, and does so soon after `wake`.
        """
        ...

    async def wake(self, door: str) -> None:
        """Let a `take` that waits return."""

    async def pending(self, door: str, adopt: bool) -> Sequence[Received]:
        """Calls that this process has taken and not settled. With `adopt` it first takes over the calls that
        are pending for processes without a lease, and removes these processes from the door's list."""
        ...

    async def take_lease(self, value: bytes, seconds: float) -> None:
        """Begin a lease, and create the inbox if there is none."""

    async def renew_lease(self, value: bytes, seconds: float) -> bool:
        """Renew the lease; False if it was lost.

        A lease that ran out while the bus itself was down is not lost: no process could see that it was
        missing, because after the bus is back each process waits for one lease time before it judges others.
        """
        ...

    async def enlist(self) -> None:
        """Add this process to the list that `leases` reads. A bus that is full refuses it."""

    async def leases(self, process_ids: Sequence[str] | None = None) -> dict[str, bytes]:
        """The leases of the given processes, or of all (None), by process id. Expired ones are left out."""
        ...

    async def close(self, goodbye: bool) -> None:
        """Disconnect; with `goodbye` the lease and the inbox end at once. Never raises `BusAway`."""


class Bus(Protocol):
    """Where processes meet."""

    async def connect(self, process_id: str) -> Link:
        """A link for one process. Raises `BusAway`."""
        ...
