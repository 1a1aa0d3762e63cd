"""What becomes of output that cannot be shown, or that nobody reads (`quire status | head -1`)."""

import io
import os
import sys
from typing import TextIO


def open_all() -> None:
    """Let standard streams that were closed (`quire up >&-`) lead nowhere. Python has None for them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def escape_unknown() -> None:
    """Print characters that the terminal's encoding lacks as `\\xfc`, where they would be an error."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def silence(stream: TextIO) -> None:
    """Let what is still written to the stream, a pipe whose reader has gone, disappear without an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
