"""What the layers of a step share; `kernels/behaviour` has what they compute."""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gpu_worker.kernels.kv_sizes import StateShape
from gpu_worker.kernels.recurrence import Filters, StateCache
from gpu_worker.kernels.reference.attention import ReferenceStep
from tests.support.paged import make_step


class Called(TorchFunctionMode):
    """Notes which functions of PyTorch are called."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


def test_layers_share_where_blocks_end_and_no_list_goes_to_the_device() -> None:
    """A list of numbers would have to be copied to a GPU, and the copy waits for it."""
    metadata = make_step([(1, 9), (12, 20)], 7, torch.Generator())
    step, cache = ReferenceStep(metadata), StateCache(StateShape(2, 5), 7, torch.zeros(40, 2, 5))
    layers = list[list[Any]]()
    for _ in range(2):
        with Called() as called:
            step.convolve(torch.ones(13, 5), Filters(torch.ones(3, 5)), cache)
        layers.append(called.functions)
    assert torch.tensor not in layers[0]
    assert torch.arange in layers[0]
    assert torch.arange not in layers[1]
