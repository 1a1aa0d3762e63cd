"""The worker's fixtures over this back end alone."""

import os
from types import SimpleNamespace

import pytest
import torch

from gpu_worker.kernels.triton.kernels import TritonKernels
from tests.support.emulated import emulate
from tests.support.interpreter import spare
from tests.unit.gpu_worker.conftest import makers

EMULATED = os.environ.get("TEST_EMULATED")
"""Compute capability, 80 or 90, for which kernels are compiled and emulated. Unset: they are interpreted."""

if EMULATED:
    emulate(int(EMULATED))
    collect_ignore = ["behaviour/test_compiles.py", "behaviour/test_variants.py"]
elif torch.cuda.is_available():
    # Kernels are compiled there, for memory that is the GPU's: tests/gpu has what runs on it.
    collect_ignore_glob = ["*test_*.py"]
else:
    spare()


@pytest.fixture(scope="session")
def kernels() -> TritonKernels:
    return TritonKernels(torch.device("cpu"))


@pytest.fixture(scope="session")
def make(kernels: TritonKernels) -> SimpleNamespace:
    """Of its own: what is made for all back ends would be kept, and given to the tests that follow."""
    return makers(kernels)
