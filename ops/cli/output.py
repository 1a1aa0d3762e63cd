"""What becomes of a command's output when nobody reads it any more (`quire status | head -1`)."""

import os
from typing import TextIO


def silence(stream: TextIO) -> None:
    """Let what is still written to the stream, a pipe whose reader has gone, disappear without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
