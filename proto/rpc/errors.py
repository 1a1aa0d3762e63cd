"""What can go wrong in the transport.

    TransportError
    ├── BusAway          the bus cannot be reached now (also a ConnectionError)
    ├── MalformedEntry   a stream entry that is not one of ours: a dead letter
    └── TaskEnded        a task that lives as long as its process has ended: the process ends

Calls end with gRPC's own errors: `grpc.aio.AioRpcError` for a status that is not OK.
"""


class TransportError(Exception):
    """Base of this package's errors."""


class BusAway(TransportError, ConnectionError):
    """The bus cannot be reached, or was lost before it answered. Reads and renewals are tried again."""


class MalformedEntry(TransportError):
    """Bytes that are not an entry of frames. The message is the reason."""


class TaskEnded(TransportError):
    """A task that lives as long as its process has ended without an error. The message says which."""
