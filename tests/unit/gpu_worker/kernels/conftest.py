"""The compiled library, and outputs that are NaN until they are written."""

import ctypes
from collections.abc import Iterator

import pytest
import torch

from tests.support.native import TESTED, with_team


@pytest.fixture(params=TESTED)
def native(request: pytest.FixtureRequest) -> ctypes.CDLL:
    """The library for each instruction set of this machine, with two threads.

    Of no larger scope: tests would be put into the order of its parameters.
    """
    return with_team(request.param, 2)


@pytest.fixture
def poisoned() -> Iterator[None]:
    """`torch.empty` gives NaN: what a kernel leaves out shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
