"""The directory of recordings: the newest few, readable by their owner alone."""

import gzip
import os
import time
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path

from proto.recording_pb2 import Recording

KEPT = 8
"""Files that are kept at least, the newest ones."""
SUFFIX = ".quire"
_FAST = 1


class Recordings:
    """Writes recordings of this process."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = count(1)
        self._written: list[Path] = []
        """In this order, which is not that of their names if the clock was set back."""

    def save(self, recording: Recording, workers: int = 1) -> Path:
        """Write a recording, whole or not at all, and drop the oldest. Raises `OSError`.

        `workers`: number of workers that may be recorded at once.
        """
        recording.version, recording.ended = running_version(), time.time()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime(recording.ended))
        path = self._directory / f"{moment}-{os.getpid()}-{next(self._numbers):06}{SUFFIX}"
        unfinished = path.with_suffix(".part")
        data = gzip.compress(recording.SerializeToString(), _FAST)
        file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(file, "wb") as opened:
                opened.write(data)
            unfinished.rename(path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        there = set(self._directory.glob(f"*{SUFFIX}"))
        self._written = [each for each in (*self._written, path) if each in there]
        oldest_first = [*sorted(there.difference(self._written)), *self._written]
        for old in oldest_first[: -max(KEPT, workers)]:
            old.unlink(missing_ok=True)  # another scheduler may have dropped it
        return path


def running_version() -> str:
    """Version of Quire that runs; empty in a checkout that is not installed."""
    try:
        return version("quire")
    except PackageNotFoundError:
        return ""
