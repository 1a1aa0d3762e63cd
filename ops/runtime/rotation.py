"""Old logs beside a log: `worker.log` is the present one, `worker.log.1` the one before, up to `KEPT`."""

import shutil
from itertools import pairwise
from pathlib import Path

KEPT = 3
"""Number of old logs."""


def rotate(log: Path, most_bytes: int = 0, in_use: bool = False) -> bool:
    """Make the log the newest old one, if it has more than `most_bytes`; whether it had.

    `in_use`: a process goes on writing to the file, which it has opened for appending. Then the file is
    copied and emptied, and lines that are written meanwhile may be lost.
    """
    if not log.exists() or log.stat().st_size <= most_bytes:
        return False
    olds = [log.with_name(f"{log.name}.{number}") for number in range(1, KEPT + 1)]
    for younger, older in reversed(list(pairwise(olds))):
        if younger.exists():
            younger.replace(older)
    if in_use:
        try:
            shutil.copyfile(log, olds[0])
        except OSError:  # as on a full disk, of which the log may be the reason: it is emptied all the same
            olds[0].unlink(missing_ok=True)
        with log.open("r+b") as file:
            file.truncate()
    else:
        log.replace(olds[0])
    return True
