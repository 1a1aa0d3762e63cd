"""Calling again after a server has died: how often, and when it is better not to.

A call that kills whoever serves it must not go round and kill them all. So a call says how many
servers it has cost since it last made progress, and a server refuses one that has cost two.
"""

import grpc

ATTEMPT = "quire-attempt"
"""Metadata key: servers lost since the call last made progress."""
LOST = "quire-lost"
"""Trailing metadata key of a call whose server died: the process that was lost."""
REFUSED_ATTEMPT = 2
TRIES = 10
"""Failures in a row, of whatever kind, after which a call is not tried again."""


class Resumption:
    """Counts for one logical call. See the package's README for the loop around it."""

    def __init__(self) -> None:
        self._attempt = 0
        self._failures = 0

    def progressed(self) -> None:
        """The call has delivered something new."""
        self._attempt = self._failures = 0

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata for the next try."""
        return ((ATTEMPT, str(self._attempt)),) if self._attempt else ()

    def retry_or_raise(self, error: grpc.aio.AioRpcError) -> None:
        """Return if the call should be tried again; else raise its error."""
        self._failures += 1
        if error.code() is not grpc.StatusCode.UNAVAILABLE or self._failures >= TRIES:
            raise error
        if any(key == LOST for key, _ in error.trailing_metadata() or ()):
            self._attempt += 1


def attempt_of(metadata: tuple[tuple[str, str | bytes], ...]) -> int:
    """The attempt number that a call's metadata carries; 0 if none or nonsense."""
    value = dict(metadata).get(ATTEMPT, "0")
    return int(value) if isinstance(value, str) and value.isdigit() else 0
