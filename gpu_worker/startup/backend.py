"""The choice of device, dtype and back end, from the settings."""

import logging

import torch

from gpu_worker.errors import CapacityError, KernelError
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import CpuKernels, Int4Kernels, MatrixUnitKernels, QuantizedKernels
from gpu_worker.kernels.cpu.kv import FORMATS
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.quantized import QuantizedReference
from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.settings import WorkerSettings

log = logging.getLogger(__name__)

BYTES = {"int8": torch.int8, "fp8": FP8}
"""Types of quantized weights of one byte, by their name in the settings."""

_BESIDE = {
    MatrixUnitKernels: " with oneDNN",
    QuantizedKernels: " with weights in int8",
    Int4Kernels: " with weights in int4",
}
"""Text that the log adds for some back ends."""


def device_of(settings: WorkerSettings) -> torch.device:
    """The device that the model runs on. With several GPUs it is the process's current one.

    Raises `CapacityError` if there are fewer GPUs than the settings need.
    """
    if settings.device == "cpu" or not torch.cuda.is_available():
        if settings.device == "cuda":
            raise CapacityError("QUIRE_DEVICE=cuda: PyTorch finds no GPU here")
        return torch.device("cpu")
    count, found = settings.tensor_parallel, torch.cuda.device_count()
    if found < count:
        raise CapacityError(f"QUIRE_TENSOR_PARALLEL={count}: GPUs that PyTorch finds here: {found}")
    return torch.device("cuda")


def dtype_of(settings: WorkerSettings, device: torch.device) -> torch.dtype | None:
    """Type of weights and activations; None: the checkpoint's own type."""
    if settings.dtype == "auto":
        return torch.float32 if device.type == "cpu" else None
    dtype: torch.dtype = getattr(torch, settings.dtype)
    return dtype


def kernels_of(settings: WorkerSettings, device: torch.device) -> Kernels:
    """The back end. Raises `KernelError` if the settings name one that cannot be used here."""
    if (device.type == "cuda" and settings.kernels == "auto") or settings.kernels == "triton":
        return _triton(settings, device)
    if device.type != "cpu" or settings.kernels == "torch" or settings.dtype == "float16":
        return _reference(settings)
    kind = _kind(settings)
    try:
        name = build.supported()[0] if settings.kernels in ("auto", "onednn") else settings.kernels
        threads = settings.thread_count
        kernels = kind(library.load(name, threads), library.cores(threads))
    except KernelError as error:
        if settings.kernels != "auto":
            raise
        log.warning("%s: PyTorch computes instead, more slowly", error)
        return _reference(settings)
    log.info("kernels: C++ for %s%s, %d threads", name, _BESIDE.get(kind, ""), threads)
    return kernels


def _triton(settings: WorkerSettings, device: torch.device) -> Kernels:
    """The back end for GPUs; PyTorch if Triton cannot be used here.

    Raises `KernelError` instead if the settings name Triton, or ask for quantized weights: PyTorch would
    widen these in every step.
    """
    try:
        from gpu_worker.kernels.triton.kernels import Int4Triton, QuantizedTriton, TritonKernels

        if settings.quantization == "none":
            return TritonKernels(device)
        if settings.quantization == "int4":
            return Int4Triton(device)
        return QuantizedTriton(device, BYTES[settings.quantization])
    except (ImportError, KernelError) as error:
        if settings.kernels == "triton":
            raise KernelError(f"QUIRE_KERNELS=triton: {error}") from error
        if settings.quantization != "none":
            raise KernelError(f"QUIRE_QUANTIZATION={settings.quantization}: {error}") from error
        log.warning("%s: PyTorch computes instead, more slowly", error)
        return ReferenceKernels()


def _reference(settings: WorkerSettings) -> ReferenceKernels:
    if settings.quantization == "none":
        return ReferenceKernels()
    if settings.quantization == "int4":
        return Int4Reference()
    return QuantizedReference(BYTES[settings.quantization])


def _kind(settings: WorkerSettings) -> type[CpuKernels]:
    """The C++ back end with the matrix products that the settings need.

    Raises `KernelError` if C++ has no kernels for the settings.
    """
    if settings.kv_dtype not in FORMATS:
        known = ", ".join(FORMATS)
        raise KernelError(
            f"QUIRE_KV_DTYPE={settings.kv_dtype} is for GPUs: on a CPU take {known} or QUIRE_KERNELS=torch"
        )
    if settings.quantization == "fp8":
        raise KernelError("QUIRE_QUANTIZATION=fp8 is for GPUs: on a CPU take int8, or QUIRE_KERNELS=torch")
    if settings.quantization != "none":
        if settings.kernels == "onednn":
            named = f"QUIRE_QUANTIZATION={settings.quantization}"
            raise KernelError(f"{named} has products of its own, without QUIRE_KERNELS=onednn")
        return Int4Kernels if settings.quantization == "int4" else QuantizedKernels
    units = settings.kernels == "auto" and settings.dtype == "bfloat16" and build.has_amx()
    return MatrixUnitKernels if units or settings.kernels == "onednn" else CpuKernels
