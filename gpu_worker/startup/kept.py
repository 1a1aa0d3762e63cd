"""What is measured once on a machine, and kept beside the compiled kernels.

Workers that start together measure one after the other. At once, each would slow the other down, and two of
one machine might choose differently. All but the first read what the first has found.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch

from gpu_worker.kernels.cpu import build

log = logging.getLogger(__name__)

Found = TypeVar("Found")

FORCED = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that keep PyTorch's libraries from instructions that the processor has."""
PATIENCE = 30.0
"""Seconds that a worker waits for another one that measures. After that it measures, too."""
POLL = 0.05
"""Seconds between two looks whether the other one has ended."""


def machine(*parts: object) -> str:
    """A name for this machine, and for `parts` that a measurement depends on besides."""
    forced = (os.environ.get(name, "") for name in FORCED)
    named = (build.processor(), torch.__version__, *forced, *map(str, parts))
    return hashlib.blake2b("\0".join(named).encode(), digest_size=8).hexdigest()


def once(
    name: str,
    measure: Callable[[], Found],
    encode: Callable[[Found], Any],
    decode: Callable[[Any], Found],
) -> Found:
    """What this machine has kept under `name`; measured now if there is nothing.

    `encode`: to what JSON can hold. `decode`: the reverse; it may raise `ValueError`, `TypeError`,
    `AttributeError` or `LookupError` for what another version has kept.
    """
    file = build.cache() / f"{name}.json"

    def read() -> Found | None:
        try:
            return decode(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, AttributeError, LookupError):
            return None  # nothing was kept, or not by this version

    if (found := read()) is not None:
        return found
    with _alone(file.with_suffix(".lock")):
        if (found := read()) is not None:
            return found
        found = measure()
        try:
            new = file.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps(encode(found)), encoding="utf-8")
            new.replace(file)
        except OSError as error:
            log.warning("what is measured of this machine cannot be kept, and is measured again: %s", error)
        return found


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock of a file, if the file system has locks and its holder ends within `PATIENCE`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError:
        yield
        return
    with file:  # closing it gives the lock back
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(POLL)
            except OSError:
                break
            else:
                break
        yield
