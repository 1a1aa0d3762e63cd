"""The C++ sampler refuses tables with other columns; `kernels/test_sampling.py` tests what it chooses."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpu_worker.errors import KernelError
from gpu_worker.kernels.cpu.sampling import Sampler
from gpu_worker.kernels.sampling import INTEGERS, NUMBERS


class Function:
    """Stands for a C function that returns a string."""

    def __init__(self, result: str = "") -> None:
        self._result = result.encode()

    def __call__(self) -> bytes:
        return self._result


def library(*columns: str) -> Any:
    return SimpleNamespace(quire_sample=Function(), quire_sampling_columns=Function(" ".join(columns) + " "))


def test_a_library_that_reads_other_columns_is_refused() -> None:
    columns = [*NUMBERS, *INTEGERS]
    Sampler(library(*columns))
    swapped = [columns[1], columns[0], *columns[2:]]
    for wrong in (columns[1:], swapped, [*columns, "top_a"]):
        with pytest.raises(KernelError, match=rf"reads the columns {', '.join(wrong)}; there are"):
            Sampler(library(*wrong))
