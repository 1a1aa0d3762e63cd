"""What the transport needs of a queue. `RedisBus` is used in deployments, `MemoryBus` is its reference.

Streams have relative names. `calls:<Service>[:<pool>]` is a front door: any process adds calls, the
service's replicas take them, competing in one consumer group. `inbox:<process-id>` has one reader.
`dead-letters` has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from proto.rpc.errors import BusAway, MalformedEntry
from proto.rpc.protocol import FIRST, PROTOCOL

DEAD_LETTERS = "dead-letters"
DEAD_LETTERS_KEPT = 10_000
MAX_LETTER_BYTES = 4 * 2**10
"""Bytes of a malformed entry that its letter keeps: ten thousand letters have some 50 MB."""
MAX_REASON = 500
"""Characters of the reason."""
MAX_ENTRY_BYTES = 16 * 2**20
"""An entry larger than this is not read. Entries that `Outbox` writes have half of it at most."""
MAX_DELIVERIES = 3
"""Processes that an unaccepted call is given to. The first may have ended for the sake of another call, which
it had taken along with this one; each of the others had taken this one alone."""
START = "0-0"
"""Below every entry's id."""
GIVEN_BACK = "given-back"
"""For whom calls at a door are pending that were given back. No process has this id."""


def inbox_of(process_id: str) -> str:
    return f"inbox:{process_id}"


def door_of(name: str, pool: str = "", protocol: int = PROTOCOL) -> str:
    """The front door of a service or method, named as in "package.Service" or "/package.Service/Method".

    Each version of the protocol has its own, so that a call only meets servers that read it as it is meant.
    """
    service = name.strip("/").partition("/")[0].rpartition(".")[2]
    door = f"calls:{service}:{pool}" if pool else f"calls:{service}"
    return door if protocol == FIRST else f"{door}#{protocol}"


def milliseconds_of(entry_id: str) -> int:
    """When an entry was written, by the bus's clock, in milliseconds since 1970."""
    return int(entry_id.partition("-")[0])


class Received(NamedTuple):
    """An entry as read."""

    id: str
    payload: bytes | None
    """None if the entry does not have exactly the field that our entries have, is too large, or was given to
    too many processes."""
    deliveries: int = 1
    """Processes that a call at a door was given to so far, this one included."""
    size: int = 0
    """Bytes of an entry that is too large; 0 for others."""

    def content(self) -> bytes:
        """The payload. Raises `MalformedEntry`."""
        if self.payload is None:
            large = f"an entry of {self.size} bytes, more than {MAX_ENTRY_BYTES}"
            raise MalformedEntry(large if self.size else "not an entry of frames")
        return self.payload


class DoorState(NamedTuple):
    """The calls at a door that are not settled."""

    waiting: int
    """Calls that no process has taken."""
    pending: int
    """Calls that a process has taken, or taken and given back."""
    oldest_seconds: float
    """Age of the oldest of them, by the bus's clock; 0 if there is none."""


class Letter(NamedTuple):
    """A malformed entry, with the reason why it could not be read."""

    stream: str
    id: str
    reason: str
    payload: bytes

    @classmethod
    def about(cls, stream: str, received: Received, error: Exception) -> Self:
        """A letter with the beginning of the entry. `error`: what reading it has raised."""
        reason = str(error) if isinstance(error, MalformedEntry) else f"{type(error).__name__}: {error}"
        reason = reason[:MAX_REASON].encode(errors="replace").decode()
        return cls(stream, received.id, reason, (received.payload or b"")[:MAX_LETTER_BYTES])


@dataclass(frozen=True, slots=True)
class Batch:
    """Writes that go out together, the beginnings of calls last."""

    number: int
    """1, 2, 3, ... among the sender's batches."""
    opens: Sequence[tuple[str, bytes]] = ()
    """Beginnings of calls: (door, payload)."""
    entries: Sequence[tuple[str, bytes]] = ()
    """(process id, payload) for that process's inbox, in their order; dropped if there is no such inbox any
    more."""
    settled: Sequence[tuple[str, str]] = ()
    """(door, entry id): accepted, refused or withdrawn. Pending no more, and gone from the stream, as soon as
    `entries` are written and no sooner."""
    letters: Sequence[Letter] = ()


class Refused(BusAway):
    """The bus has refused a part of a batch, as when it is full."""

    def __init__(self, reason: str, rest: Batch) -> None:
        """`rest`: what is still to be published, under the same number."""
        super().__init__(reason)
        self.rest = rest


class Link(Protocol):
    """One process's connection to the bus. Methods raise `BusAway` unless their docstring says otherwise."""

    async def publish(self, batch: Batch, again: bool = False) -> Sequence[str | None]:
        """Write a batch; returns the ids of its `opens`, or nothing if the ids are no longer known.

        None stands for one that the bus will never take. Entries that it will never take are dropped.

        After `BusAway` it is unknown whether the batch took effect: publish it `again`, or what `Refused` has
        left of it, before any other entries and calls. It may have fewer `opens`, if some are not wanted any
        more, and more `entries` and `settled` behind its own. Then an entry may be in an inbox twice, but no
        call is at its door twice.
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
        """Be one of the replicas that compete for a door's calls.

        A bus may lose its doors, as when it comes back empty. `take` and `pending` join them again.
        """

    async def take(self, door: str, count: int) -> Sequence[Received]:
        """Wait for calls at a door and take up to `count` of them; they are pending until settled.

        May return nothing, and does so soon after `wake`.
        """
        ...

    async def missing(self, door: str, entry_ids: Sequence[str]) -> set[str]:
        """Which of these entries are not at the door: settled, or lost."""
        ...

    async def wake(self, door: str) -> None:
        """Let a `take` that waits return."""

    async def pending(self, door: str) -> Sequence[Received]:
        """Calls that this process has taken and not settled. Payloads are left out as by `adopt`.

        The bus keeps a door for as long as this is asked about it.
        """
        ...

    async def look(self, door: str) -> DoorState:
        """What lies at a door that was joined."""
        ...

    async def give_back(self, door: str, entry_ids: Sequence[str]) -> None:
        """Return calls that are pending for this process, so that any process can `adopt` them.

        Their number of `deliveries` is as if this process had not taken them. Calls that are settled, or
        pending for another process, stay as they are.
        """

    async def adopt(self, door: str, of_the_dead: bool) -> Received | None:
        """Take over a call that was given back, or is pending for a process without a lease.

        `of_the_dead`: whether the latter count, too. None if there is none. One at a time, and its
        `deliveries` are one more; beyond `MAX_DELIVERIES` it has no payload: reading it may end this process,
        too. Removes processes without a lease and without calls from the door's list.
        """
        ...

    def clock(self) -> float:
        """The time by the bus's clock, seconds since 1970, as the last renewal of the lease has told it.

        Never raises `BusAway`.
        """
        ...

    async def take_lease(self, value: bytes, seconds: float) -> None:
        """Begin a lease, create the inbox if there is none, and add this process to the list of `leases`."""

    async def renew_lease(self, value: bytes, seconds: float) -> bool:
        """Renew the lease; False if it was lost.

        It counts as lost, too, if the bus has restarted or another server has taken its place: the bus may
        have lost what it had acknowledged. Until a new lease is taken all other methods raise `BusAway`.
        """
        ...

    async def enlist(self) -> None:
        """Add this process to the list again, if it was taken off it. A bus that is full refuses this."""

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
