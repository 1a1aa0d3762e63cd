"""The GPUs and the memory of this machine, and which part of them each worker of a deployment has.

Of several workers each gets GPUs of its own. Left to themselves they would all take the first one, and its
memory as if it were theirs alone. Workers that share a device share its memory evenly.
"""

import os
from pathlib import Path

DEVICES = Path("/dev")
"""Has a file `nvidia<number>` for each GPU of NVIDIA's that may be used here."""


def shares(workers: int, device: str | None = None) -> list[dict[str, str]]:
    """What to add to each worker's environment: its GPUs, or its share of what all of them use.

    `device`: where they compute, if that is chosen.
    """
    ranks = os.environ.get("QUIRE_TENSOR_PARALLEL", "")
    each = max(1, int(ranks)) if ranks.isdecimal() else 1  # the worker refuses anything but a number
    seen = _visible()
    if workers == 1:
        return [{}]
    if device == "cpu" or len(seen) < workers * each:
        share = os.environ.get("QUIRE_MEMORY_SHARE") or f"{1 / workers:.4f}"
        return [{"QUIRE_MEMORY_SHARE": share}] * workers
    return [{"CUDA_VISIBLE_DEVICES": ",".join(seen[n * each : (n + 1) * each])} for n in range(workers)]


def present() -> int:
    """Number of GPUs of this machine, whether this process may use them or not."""
    return sum(each.name.removeprefix("nvidia").isdecimal() for each in DEVICES.glob("nvidia*"))


def _visible() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA knows."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip()]
    return [str(number) for number in range(present())]
