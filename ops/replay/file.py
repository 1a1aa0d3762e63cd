"""Reads a recording."""

import gzip
import zlib
from pathlib import Path

from google.protobuf.message import DecodeError

from ops.runtime.errors import UsageError
from proto.recording_pb2 import Recording

MOST_BYTES = 2**30
"""Of a recording that is not compressed any more. A real one is far smaller."""


def read(path: Path) -> Recording:
    """The recording of a file. Raises `UsageError`."""
    try:
        with gzip.open(path) as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UsageError(f"{path} is too large for a recording")
        if not data:
            raise UsageError(f"{path} is empty")
        return Recording.FromString(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (EOFError, zlib.error, DecodeError) as error:
        raise UsageError(f"{path} is no recording: {error}") from None
