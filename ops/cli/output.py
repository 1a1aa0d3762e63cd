"""What becomes of a command's output when nobody can read it, or not any more (`quire status | head -1`)."""

import os
import sys
from typing import TextIO


def open_all() -> None:
    """Let standard streams that were closed (`quire up >&-`) lead nowhere. Python has None for them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def silence(stream: TextIO) -> None:
    """Let what is still written to the stream, a pipe whose reader has gone, disappear without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
