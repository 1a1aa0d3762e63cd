"""What Triton asks of a GPU's driver, over the emulator: kernels are launched with tensors of the CPU.

Triton specializes and compiles as for a GPU of that kind, up to PTX, which is taken for its binary.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

from tests.support.ptx.counts import Counts
from tests.support.ptx.device import DeviceMemory
from tests.support.ptx.run import Code

SHARED = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10}
"""Bytes of shared memory that a program may take, by compute capability."""

code_of = lru_cache(maxsize=None)(Code)
"""Of a text, once."""


class EmulatedDriver(DriverBase):
    """Raises `PtxError` for what a GPU would not forgive."""

    launcher_cls: type

    def __init__(self, capability: int) -> None:
        self._capability = capability
        self.counts: dict[str, Counts] | None = None
        """By the names of kernels; None: nothing is counted."""
        self.further: Sequence[Tensor] = ()
        """Tensors that kernels may reach beside their arguments."""
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": SHARED[capability]},
            load_binary=lambda name, binary, shared, device: (None, code_of(binary.decode()), 0, 0, 1024),
        )
        self.launcher_cls = lambda source, metadata: Launcher(self, source, metadata)

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is compiled for the host")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("times of an emulator say nothing")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._capability, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Launcher:
    """Of one compiled kernel."""

    def __init__(self, driver: EmulatedDriver, source: Any, metadata: Any) -> None:
        self._driver, self._shared = driver, metadata.shared
        self._kinds = list(source.signature.values())

    def __call__(self, x: int, y: int, z: int, stream: int, code: Code, *rest: Any) -> None:
        arguments = rest[-len(self._kinds) :]
        given = [
            (kind, value) for kind, value in zip(self._kinds, arguments, strict=True) if kind != "constexpr"
        ]
        names = [name for name, _ in code.kernel.parameters]
        values = [bits_of(kind, value) for kind, value in given] + [
            0,
            0,
        ]  # two scratch pads that nothing asks for
        tensors = [value for _, value in given if isinstance(value, Tensor)]
        counts = None
        if self._driver.counts is not None:
            counts = self._driver.counts.setdefault(code.kernel.name, Counts())
        code.launch(
            (x, y, z),
            dict(zip(names, values, strict=True)),
            DeviceMemory([*tensors, *self._driver.further]),
            self._shared,
            counts,
        )


def bits_of(kind: str, value: Any) -> int:
    """Of an argument, as Triton names its type."""
    if kind[0] == "*":
        return int(value.data_ptr())
    if kind == "fp32":
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return int(value)


def activate(capability: int) -> EmulatedDriver:
    """From here on Triton compiles for such a GPU, and the emulator runs it."""

    def stages_of(*place: Any) -> tuple[str, str] | None:
        if not place:
            return "emulated", "emulated"  # of what is kept compiled
        place[1]["cubin"] = lambda source, metadata: source.encode()
        return None

    triton.knobs.runtime.add_stages_inspection_hook = stages_of
    driver = EmulatedDriver(capability)
    triton.runtime.driver.set_active(driver)
    return driver


@contextmanager
def counted(driver: EmulatedDriver) -> Iterator[dict[str, Counts]]:
    """What kernels ask for meanwhile, by their names."""
    driver.counts = {}
    try:
        yield driver.counts
    finally:
        driver.counts = None
