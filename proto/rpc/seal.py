"""Entries that only processes of the deployment can write: each begins with a code over its stream and bytes.

The code is keyed BLAKE2b (RFC 7693) of 16 bytes. An entry is refused that was written without the secret of
the deployment, was changed, or was copied from another stream. A copy in its own stream is known by the
numbers of its frames. All processes have the same secret, which does not tell them apart: users of Redis do.
"""

import hashlib
import hmac

from proto.rpc.errors import MalformedEntry

CODE_BYTES = 16


class Seal:
    """Adds and checks codes. Without a secret it does neither."""

    def __init__(self, secret: bytes = b"") -> None:
        self._keyed = None
        if secret:
            key = hashlib.sha256(secret).digest()  # of any length
            self._keyed = hashlib.blake2b(key=key, digest_size=CODE_BYTES, person=b"quire entry")

    def close(self, stream: str, entry: bytes) -> bytes:
        """The entry as it is written to a stream."""
        return entry if self._keyed is None else self._code(stream, entry) + entry

    def open(self, stream: str, payload: bytes) -> bytes:
        """The entry, out of what was read from a stream. Raises `MalformedEntry`."""
        if self._keyed is None:
            return payload
        entry = payload[CODE_BYTES:]
        if not hmac.compare_digest(payload[:CODE_BYTES], self._code(stream, entry)):
            raise MalformedEntry("an entry that was not written with this deployment's secret")
        return entry

    def _code(self, stream: str, entry: bytes) -> bytes:
        assert self._keyed is not None
        code = self._keyed.copy()
        code.update(stream.encode() + b"\0")
        code.update(entry)
        return code.digest()
