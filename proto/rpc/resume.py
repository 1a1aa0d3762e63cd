"""Calling again after a server has died: how often, and when it is better not to.

A call that ends the process that serves it must not go round and end them all. But most of the calls that
a process was serving when it died had no part in that. So a call says how many servers were lost with it
since it last made progress, and that has consequences:

    1            the first loss says little: the call is served like any other
    2, 3, 4      it is a suspect: a server has one suspect at a time, until that one has made progress
    5            it was lost three times while it was the only suspect of its server, and is refused

The loss of a server does not count while a suspect waits for its turn there, and never if no call can be the
reason: see `OUTSIDE`.
"""

import grpc

ATTEMPT = "quire-attempt"
"""Metadata key: servers lost since the call last made progress."""
LOST = "quire-lost"
"""Trailing metadata key of a call whose server died, or what computed for it: the process that was lost."""
OUTSIDE = "quire-outside"
"""Trailing metadata key of a call for whose end no call can be the reason. Its server was stopped in order or
killed by somebody else, or goes on after a silence longer than its lease; or the caller does; or the call was
a suspect that waited for its turn."""
RAISED = "quire-raised"
"""Trailing metadata key of a call whose server lives and raised an error in a step: the step's number."""
WAITS = "quire-waits"
"""Metadata key in the first frame of a suspect's server: its turn has not come."""
SUSPECT_ATTEMPT = 2
REFUSED_ATTEMPT = 5
TRIES = 10
"""Failures in a row, of whatever kind but from outside, after which a call is not tried again."""


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
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise error
        if from_outside(error):
            return
        self._failures += 1
        if self._failures >= TRIES:
            raise error
        if any(key == LOST for key, _ in error.trailing_metadata() or ()):
            self._attempt += 1


def from_outside(error: Exception) -> bool:
    """Whether a call's error has a reason for which no call can be to blame."""
    return isinstance(error, grpc.aio.AioRpcError) and any(
        key == OUTSIDE for key, _ in error.trailing_metadata() or ()
    )


def attempt_of(metadata: tuple[tuple[str, str | bytes], ...]) -> int:
    """The attempt number that a call's metadata carries; 0 if none or nonsense."""
    value = dict(metadata).get(ATTEMPT, "0")
    # "²" is a digit, too, and no number; and thousands of digits are more than Python reads.
    plain = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10
    return int(value) if plain else 0
