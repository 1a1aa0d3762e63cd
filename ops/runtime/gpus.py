"""The GPUs of this machine, and which of them each worker of a deployment sees.

Of several workers each gets some of its own. Left to themselves they would all take the first one, and its
memory as if it were theirs alone.
"""

import os
from pathlib import Path

DEVICES = Path("/dev")
"""Has a file `nvidia<number>` for each GPU of NVIDIA's that may be used here."""


def shares(workers: int) -> list[dict[str, str]]:
    """What to add to each worker's environment; nothing if there are not enough GPUs for all of them."""
    ranks = os.environ.get("QUIRE_TENSOR_PARALLEL", "")
    each = max(1, int(ranks)) if ranks.isdecimal() else 1  # the worker refuses anything but a number
    seen = _visible()
    if workers == 1 or len(seen) < workers * each:
        return [{}] * workers
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
