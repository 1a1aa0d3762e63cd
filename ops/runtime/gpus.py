"""The GPUs and the memory of this machine, and which part of them each worker of a deployment has.

Of several workers each gets GPUs of its own. Left to themselves they would all take the first one, and its
memory as if it were theirs alone. Workers that share a GPU get equal parts of what all their weights leave.
"""

import os
import subprocess
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path

DEVICES = Path("/dev")
"""Has a file `nvidia<number>` for each GPU of NVIDIA's that may be used here."""


SMI_SECONDS = 10.0
"""Time in which `nvidia-smi` must answer."""


def shares(
    workers: int, device: str | None = None, weights: Callable[[], Sequence[int]] = lambda: ()
) -> list[dict[str, str]]:
    """What to add to each worker's environment: its GPUs, or its share of what all of them use.

    `device`: where they compute, if that is chosen. `weights`: gives the bytes of each worker's weights, or
    nothing if they are not known. It is asked if the workers share a GPU.
    """
    ranks = os.environ.get("QUIRE_TENSOR_PARALLEL", "")
    each = max(1, int(ranks)) if ranks.isdecimal() else 1  # the worker refuses anything but a number
    seen = _visible()
    if workers == 1:
        return [{}]
    if device == "cpu" or len(seen) < workers * each:
        if share := os.environ.get("QUIRE_MEMORY_SHARE"):
            return [{"QUIRE_MEMORY_SHARE": share}] * workers
        parts = [1 / workers] * workers
        if device != "cpu" and seen:
            parts = _parts([size / each for size in weights()], _memory_of(seen[0])) or parts
        return [{"QUIRE_MEMORY_SHARE": f"{part:.4f}"} for part in parts]
    return [{"CUDA_VISIBLE_DEVICES": ",".join(seen[n * each : (n + 1) * each])} for n in range(workers)]


def used(device: str | None) -> bool:
    """Whether workers compute on GPUs. `device`: where they compute, if that is chosen."""
    return device == "cuda" or (device != "cpu" and bool(_visible()))


def _parts(weights: Sequence[float], memory: int) -> list[float]:
    """The part of a GPU's memory for each worker: its weights, and as much beside them as the others have.

    Empty if the weights or the memory are not known, or the weights leave nothing.
    """
    left = memory - sum(weights)
    if not weights or left <= 0:
        return []
    return [(own + left / len(weights)) / memory for own in weights]


def _memory_of(gpu: str) -> int:
    """Bytes of a GPU's memory; 0 if the driver does not tell."""
    command = ("nvidia-smi", f"--id={gpu}", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=SMI_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(told) * 2**20 if told.strip().isdecimal() else 0


def present() -> int:
    """Number of GPUs of this machine, whether this process may use them or not."""
    return sum(each.name.removeprefix("nvidia").isdecimal() for each in DEVICES.glob("nvidia*"))


def _visible() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA knows. It reads up to one that is none: -1
    hides all."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = map(str.strip, chosen.split(","))
        return list(takewhile(lambda name: name and not name.startswith("-"), names))
    return [str(number) for number in range(present())]
