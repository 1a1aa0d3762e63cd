"""Whether a GPU still works for this process after an error.

After a lack of memory it does. After an access to an illegal address or a hardware error every later call of
the process fails, and only a new process helps (CUDA Runtime API, `cudaErrorIllegalAddress` and others).
"""

import torch


def is_lost(device: torch.device) -> bool:
    """Whether all further calls to the device would fail in this process. Waits for the device's work."""
    if device.type != "cuda":
        return False
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return True
    return False
