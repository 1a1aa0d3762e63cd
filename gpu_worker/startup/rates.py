"""This machine's rates: measured at a worker's first start, and kept."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

import torch

from gpu_worker.machine import rates
from gpu_worker.machine.main_memory import available
from gpu_worker.machine.rates import Rates
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup import kept
from gpu_worker.startup.backend import device_of, dtype_of

SECONDS = 0.4
"""Time for each measurement, about."""
SHARE = 8
"""Memory is read from an eighth of what is free, at most."""
LEAST_BYTES = 2**24
"""To be read: of less, caches would have most, and the rate is kept for good."""


def rates_of(settings: WorkerSettings) -> Rates | None:
    """The rates with as many threads as the model has. None where steps are not compared with them: on a GPU,
    in float16, with several ranks, which share the memory's bandwidth, and with hardly any free memory."""
    device = device_of(settings)
    dtype = dtype_of(settings, device)
    if device.type != "cpu" or settings.tensor_parallel > 1 or dtype not in (torch.float32, torch.bfloat16):
        return None
    threads = settings.thread_count

    size = min(rates.READ_BYTES, available() // SHARE)
    if size < LEAST_BYTES:
        return None

    def measure() -> Rates:
        with ThreadPoolExecutor(1) as apart:  # PyTorch's threads end with the thread that used them
            return apart.submit(rates.measured, dtype, threads, size, SECONDS).result()

    return kept.once(f"rates-{kept.machine(dtype, threads)}", measure, asdict, _read)


def _read(found: dict[str, float]) -> Rates:
    """Rates as they were kept. Raises an error that `kept.once` expects."""
    read = Rates(**{name: float(rate) for name, rate in found.items()})
    if not (0 < read.read < float("inf") and 0 < read.matrix < float("inf")):
        raise ValueError("rates are above 0")
    return read
