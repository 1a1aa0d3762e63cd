"""The worker's fixtures over this back end alone."""

import pytest
import torch

from gpu_worker.kernels.triton.kernels import TritonKernels

if torch.cuda.is_available():
    # Kernels are compiled there, for memory that is the GPU's: tests/gpu has what runs on it.
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def kernels() -> TritonKernels:
    return TritonKernels(torch.device("cpu"))
