"""The directory of recordings: the newest few of each model, readable by their owner alone.

    <model>-<time>-<host>-<process>-<number>.quire

Schedulers of several models may share the directory, and several of one model: a scheduler drops files of its
own model alone, and those of others separately from its own.
"""

import gzip
import os
import re
import socket
import time
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from pathlib import Path
from urllib.parse import quote

from proto.recording_pb2 import Recording

KEPT = 8
"""Files of this process that are kept at least, the newest ones; and as many of others of its model."""
SUFFIX = ".quire"
LONGEST_NAME = 100
"""Characters that file names have of the model's name, and of the host's, at most."""
_FAST = 1


class Recordings:
    """Writes recordings of this process."""

    def __init__(self, directory: Path, model: str) -> None:
        """`model`: name under which it is served."""
        self._directory = directory
        self._model = quote(model, safe="")[:LONGEST_NAME]
        self._process = _name_of(os.getpid())
        self._of_model = re.compile(rf"{re.escape(self._model)}-\d{{8}}T\d{{6}}-.*{re.escape(SUFFIX)}")
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
        name = f"{self._model}-{moment}-{self._process}-{next(self._numbers):06}{SUFFIX}"
        path = self._directory / name
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
        there = {each for each in self._directory.iterdir() if self._of_model.fullmatch(each.name)}
        self._written = [each for each in (*self._written, path) if each in there]
        others = sorted(there.difference(self._written))
        most = max(KEPT, workers)
        for old in (*self._written[:-most], *others[:-most]):
            old.unlink(missing_ok=True)  # another scheduler may have dropped it
        return path


def files_of(directory: Path, pid: int) -> list[Path]:
    """The recordings that a process of this host has written."""
    return list(directory.glob(f"*-????????T??????-{_name_of(pid)}-*{SUFFIX}"))


def _name_of(pid: int) -> str:
    """A process of this host in file names. Processes of containers have equal numbers."""
    return f"{socket.gethostname()[:LONGEST_NAME]}-{pid}"


def running_version() -> str:
    """Version of Quire that runs; empty in a checkout that is not installed."""
    try:
        return version("quire")
    except PackageNotFoundError:
        return ""
