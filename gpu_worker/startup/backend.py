"""The choice of device, dtype and back end, from the settings."""

import ctypes
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from gpu_worker.errors import KernelError, ModelError, NoDeviceError
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import (
    CpuKernels,
    Int4Kernels,
    KeptKernels,
    KeptOneDnnKernels,
    OneDnnKernels,
    QuantizedKernels,
)
from gpu_worker.kernels.cpu.kv import FORMATS
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kept import KeptReference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.quantized import QuantizedReference
from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.machine.onednn import has_onednn_bfloat16
from gpu_worker.models.checkpoint import open_checkpoint
from gpu_worker.models.config import architecture_of, named_dtype, read_values
from gpu_worker.models.families import family_of
from gpu_worker.models.formats import read_format
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup import bfloat16_products
from ops.model_directory.encoder import encoder_family

log = logging.getLogger(__name__)

BYTES = {"int8": torch.int8, "fp8": FP8}
"""Types of quantized weights of one byte, by their name in the settings."""

COMPILER_FAILED = "PassManager::run failed"
"""How Triton's compiler says, in a `RuntimeError`, that a kernel is not for this GPU."""

PLAIN = ("auto", "none")
"""Settings with which plain weights stay plain."""

_KEPT: dict[type[CpuKernels], type[CpuKernels]] = {
    CpuKernels: KeptKernels,
    OneDnnKernels: KeptOneDnnKernels,
}
"""Back ends that keep a checkpoint's quantized weights, by those of plain weights."""

_BESIDE = {
    OneDnnKernels: " with oneDNN",
    KeptKernels: ", quantized weights as they are",
    KeptOneDnnKernels: " with oneDNN, quantized weights as they are",
    QuantizedKernels: " with weights in int8",
    Int4Kernels: " with weights in int4",
}
"""Text that the log adds for some back ends."""


def device_of(settings: WorkerSettings) -> torch.device:
    """The device that the model runs on. With several GPUs it is the process's current one.

    Raises `NoDeviceError` if there are fewer GPUs than the settings need.
    """
    if settings.device == "cpu" or not torch.cuda.is_available():
        if settings.device == "cuda":
            raise NoDeviceError("QUIRE_DEVICE=cuda: PyTorch finds no GPU here")
        return torch.device("cpu")
    count, found = settings.tensor_parallel, torch.cuda.device_count()
    if found < count:
        raise NoDeviceError(f"QUIRE_TENSOR_PARALLEL={count}: GPUs that PyTorch finds here: {found}")
    return torch.device("cuda")


def with_dtype(settings: WorkerSettings, device: torch.device) -> WorkerSettings:
    """The same settings with a type instead of `auto` on a CPU: the checkpoint's own if it is bfloat16 and
    C++ multiplies, so that rows have the same bits whatever runs beside them; otherwise float32.
    """
    if settings.dtype != "auto" or device.type != "cpu":
        return settings
    return settings.model_copy(update={"dtype": "bfloat16" if _suits_bfloat16(settings) else "float32"})


def _suits_bfloat16(settings: WorkerSettings) -> bool:
    try:
        values = read_values(settings.model)
        if encoder_family(values.values):
            return False  # PyTorch computes it
        if family_of(architecture_of(values), values.values) is None and not has_onednn_bfloat16():
            return False  # PyTorch, with which its trial compares, would take many times as long
        if (named_dtype(values) or _stored_dtype(settings.model)) != torch.bfloat16:
            return False
        if settings.kernels not in ("auto", *build.supported()):
            return False
        library.opened(instruction_set(settings))  # threads start later, on the cores of their rank
    except (ModelError, KernelError):
        return False
    return True


def _stored_dtype(model: Path) -> torch.dtype:
    with open_checkpoint(model) as checkpoint:
        return checkpoint.dtype()


def dtype_of(settings: WorkerSettings, device: torch.device) -> torch.dtype | None:
    """Type of weights and activations; None: the checkpoint's own type."""
    if settings.dtype == "auto":
        return torch.float32 if device.type == "cpu" else None
    dtype: torch.dtype = getattr(torch, settings.dtype)
    return dtype


def kernels_of(settings: WorkerSettings, device: torch.device, ranks: Ranks = ALONE) -> Kernels:
    """The back end, the same on all ranks.

    Raises `KernelError` if the settings name one that cannot be used here.
    """
    if (device.type == "cuda" and settings.kernels == "auto") or settings.kernels == "triton":
        return _triton(settings, device)
    if device.type != "cpu" or settings.kernels == "torch" or settings.dtype == "float16":
        return _reference(settings)
    kind = _kind(settings)
    try:
        name, threads = instruction_set(settings), settings.thread_count
        compiled = library.load(name, threads)
    except KernelError as error:
        if settings.kernels != "auto":
            raise
        return _instead(_reference(settings), error)
    if kind is CpuKernels and settings.dtype == "bfloat16":
        _take_faster_pairs(compiled, settings, ranks)
    if keeps_weights(settings):
        kind = _KEPT.get(kind, kind)
    log.info("kernels: C++ for %s%s, %d threads", name, _BESIDE.get(kind, ""), threads)
    return kind(compiled, library.cores(threads))


def instruction_set(settings: WorkerSettings) -> str:
    """The instruction set of the C++ kernels."""
    return build.supported()[0] if settings.kernels in ("auto", "onednn") else settings.kernels


@contextmanager
def compiling() -> Iterator[None]:
    """Compute what lets Triton compile kernels. Raises `KernelError` for one that the GPU has no room for, or
    that Triton cannot compile."""
    try:
        yield
    except Exception as error:
        of_triton = any(kind.__module__.partition(".")[0] == "triton" for kind in type(error).__mro__)
        if not of_triton and not str(error).startswith(COMPILER_FAILED):
            raise
        what = str(error).strip().rpartition("\n")[2]  # behind the lines of the kernel
        raise KernelError(f"Triton: {what} (QUIRE_KERNELS=torch computes without it)") from error


def plain_kernels(kernels: Kernels) -> Kernels:
    """The back end of plain weights on the device of another, for factors of adapters. A row's results depend
    on other rows where those of `kernels` do."""
    return CpuKernels(kernels.library) if isinstance(kernels, CpuKernels) else ReferenceKernels()


def keeps_weights(settings: WorkerSettings) -> bool:
    """Whether weights that are quantized in the checkpoint stay so. Its errors are those of loading it."""
    if settings.quantization != "auto":
        return False
    try:
        return read_format(read_values(settings.model)) is not None
    except ModelError:
        return False


def _take_faster_pairs(compiled: ctypes.CDLL, settings: WorkerSettings, ranks: Ranks) -> None:
    """Let C++ multiply bfloat16 in the way that is faster here, the same on every rank. Most instruction sets
    leave no choice."""
    if compiled.quire_bfloat16_pairs(1) != 1:
        return
    found = bfloat16_products.known_times(compiled, settings.model, settings.thread_count)
    for name, times in found.items():
        each = ", ".join(
            f"{rows} rows {time:.3g} ms" for rows, time in zip(bfloat16_products.ROWS, times, strict=True)
        )
        log.info("products by %s: %s", name, each)
    taken = list(found)[ranks.least(bfloat16_products.fastest(found))]
    log.info("products of bfloat16 are by %s", taken)
    compiled.quire_bfloat16_pairs(taken != bfloat16_products.IN_PARTS)


def _triton(settings: WorkerSettings, device: torch.device) -> Kernels:
    """The back end for GPUs; PyTorch if Triton cannot be used here.

    Raises `KernelError` instead if the settings name Triton, or ask for quantized weights: PyTorch would
    widen these in every step.
    """
    try:
        from gpu_worker.kernels.triton.kernels import Int4Triton, KeptTriton, QuantizedTriton, TritonKernels

        if settings.quantization in PLAIN:
            return (KeptTriton if keeps_weights(settings) else TritonKernels)(device)
        if settings.quantization == "int4":
            return Int4Triton(device)
        return QuantizedTriton(device, BYTES[settings.quantization])
    except (ImportError, KernelError) as error:
        if settings.kernels == "triton":
            raise KernelError(f"QUIRE_KERNELS=triton: {error}") from error
        if settings.quantization not in PLAIN:
            raise KernelError(f"QUIRE_QUANTIZATION={settings.quantization}: {error}") from error
        return _instead(ReferenceKernels(), error)


def _instead(kernels: ReferenceKernels, error: Exception) -> ReferenceKernels:
    """PyTorch, which says why it computes."""
    log.warning("%s: PyTorch computes instead, more slowly", error)
    kernels.reason = f"{error}"
    return kernels


def _reference(settings: WorkerSettings) -> ReferenceKernels:
    if settings.quantization in PLAIN:
        return KeptReference() if keeps_weights(settings) else ReferenceKernels()
    if settings.quantization == "int4":
        return Int4Reference()
    return QuantizedReference(BYTES[settings.quantization], rotates=settings.quantization == "int8")


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
    if settings.quantization not in PLAIN:
        if settings.kernels == "onednn":
            named = f"QUIRE_QUANTIZATION={settings.quantization}"
            raise KernelError(f"{named} has products of its own, without QUIRE_KERNELS=onednn")
        return Int4Kernels if settings.quantization == "int4" else QuantizedKernels
    if settings.kernels != "onednn":
        return CpuKernels
    if settings.dtype == "bfloat16" and not has_onednn_bfloat16():
        raise KernelError("QUIRE_KERNELS=onednn: oneDNN multiplies no bfloat16 on this processor")
    return OneDnnKernels
