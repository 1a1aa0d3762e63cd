"""What a worker's answers depend on besides the request, in short.

Two workers of the same fingerprint go on with each other's answers. Weights are told apart by the headers of
their files and by samples of the numbers, so that a large model takes milliseconds. What multiplies bfloat16
is measured (`measured.py`) and counts: each way rounds differently. So may another compiler, and another
version of kernels, models or PyTorch. (PyTorch makes the tables of rotary embeddings for all back ends.)
"""

import functools
import hashlib
from pathlib import Path
from typing import cast

import torch

from gpu_worker.kernels.cpu import build, library, onednn
from gpu_worker.kernels.cpu.kernels import CpuKernels, OneDnnKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.models.adapters.adapter import WEIGHTS
from gpu_worker.models.adapters.config import CONFIG
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.backend import instruction_set
from ops.model_directory.files import MODELOPT
from ops.model_directory.grammars import VERSION as GRAMMARS
from ops.model_directory.vision import PROCESSOR_FILES
from ops.model_directory.weight_files import weight_files

SAMPLES = 64
"""Places in each file of weights that are looked at."""
SAMPLE_BYTES = 4096
FILES = ("config.json", MODELOPT, "generation_config.json", *PROCESSOR_FILES)
PACKAGE = Path(__file__).parents[1]
CODE = ("kernels", "models")
"""Folders of what computes."""
SOURCES = (".py", ".h", ".cpp")


def fingerprint_of(
    settings: WorkerSettings, kernels: Kernels, dtype: torch.dtype, device: torch.device
) -> str:
    """Of a worker with these settings: 16 hexadecimal digits. `dtype`: the model's. Raises `OSError`."""
    found = hashlib.blake2b(weights_of(settings.model), digest_size=8)
    found.update(GRAMMARS.encode())
    formats = (dtype, settings.quantization, settings.kv_dtype, settings.tensor_parallel)
    made_by = (
        torch.__version__,
        library.compiler(kernels.library) if isinstance(kernels, CpuKernels) else "",
    )
    computes = arithmetic_of(settings, kernels, device)
    found.update(repr((*map(str, formats), *made_by, computes, code())).encode())
    return found.hexdigest()


@functools.cache
def code() -> str:
    """A hash of the sources of what computes."""
    found = hashlib.blake2b(digest_size=16)
    for folder in CODE:
        for path in sorted((PACKAGE / folder).rglob("*")):
            if path.suffix in SOURCES:
                found.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return found.hexdigest()


def adapter_fingerprint(fingerprint: str, directory: Path) -> str:
    """Of the same worker's answers with a LoRA adapter. Raises `OSError`."""
    found = hashlib.blake2b(fingerprint.encode(), digest_size=8)
    for name in (CONFIG, WEIGHTS):
        with (directory / name).open("rb") as file:
            found.update(hashlib.file_digest(file, "blake2b").digest())
    return found.hexdigest()


def weights_of(directory: Path) -> bytes:
    """A hash of a model's configuration and weights. Raises `OSError`."""
    found = hashlib.blake2b(digest_size=32)
    for name in FILES:
        path = directory / name
        content = path.read_bytes() if path.is_file() else b""
        found.update(f"{name} {len(content)} ".encode() + content)
    for path in sorted((*weight_files(directory), *directory.glob("*.gguf"))):
        size = path.stat().st_size
        if not path.is_file():  # as a pipe, at which `open` waits
            continue
        found.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            header = 0  # what a GGUF file says before its numbers is in config.json
            if path.suffix == ".safetensors":
                header = min(int.from_bytes(file.read(8), "little"), size)
                found.update(file.read(header))
            for place in range(SAMPLES):
                file.seek(8 + header + max(0, size - 8 - header - SAMPLE_BYTES) * place // (SAMPLES - 1))
                found.update(file.read(SAMPLE_BYTES))
    return found.digest()


def arithmetic_of(settings: WorkerSettings, kernels: Kernels, device: torch.device) -> str:
    """What computes: the GPU or the instruction set, and the back end."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} {type(kernels).__name__}"
    if not type(kernels).__module__.startswith(build.__package__ or ""):
        return f"torch {torch.backends.cpu.get_cpu_capability()}"
    name = instruction_set(settings)
    if isinstance(kernels, OneDnnKernels):
        return f"{name} {onednn.arithmetic()}"
    in_parts = cast(CpuKernels, kernels).library.quire_bfloat16_pairs(-1) == 0
    return f"{name} in two parts" if in_parts and settings.dtype == "bfloat16" else name
