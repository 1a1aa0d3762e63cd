"""Whether a GPU can still be computed with after something has gone wrong.

What it has no memory for it leaves undone, and goes on. But after an access to an address that is nobody's,
or an error of the hardware, every later call of the process fails too, and nothing but a new process helps
(CUDA Runtime API, `cudaErrorIllegalAddress` and others).
"""

import torch


def is_lost(device: torch.device) -> bool:
    """Whether the device does nothing more for this process. Waits for what it was given."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
