"""What can go wrong in the transport.

    TransportError
    ├── BusAway          the bus cannot be reached now (also a ConnectionError)
    └── MalformedEntry   a stream entry that is not one of ours: a dead letter

Calls end with gRPC's own errors: `grpc.aio.AioRpcError` for a status that is not OK.
"""


class TransportError(Exception):
    """Base of this package's errors."""


class BusAway(TransportError, ConnectionError):
    """The bus cannot be reached, or dropped the connection. Whoever reads or renews tries again."""


class MalformedEntry(TransportError):
    """An entry without frames, or with bytes that are no frames. The message is the reason."""
