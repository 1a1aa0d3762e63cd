"""Products with the codes of a checkpoint's weights, in plain PyTorch: see `kernels/codes.py`.

The weight is dequantized in every product, in float32. Activations are not rounded.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear

from gpu_worker.kernels.codes import CodedWeight
from gpu_worker.kernels.products import Linear
from gpu_worker.kernels.reference.kernels import ReferenceKernels, WideLinear


class CodedLinear(WideLinear):
    """See `Linear`. `rows` are dequantized rows of the weight."""

    def __init__(self, weight: CodedWeight, bias: Tensor | None, dtype: torch.dtype) -> None:
        """`dtype`: of the results."""
        self._codes, self._bias = weight.codes, None if bias is None else bias.float()
        self._rows_dtype, self._dtype = weight.dtype, dtype

    def rows(self, numbers: Tensor) -> Tensor:
        return self._codes[numbers].dequantized().to(self._rows_dtype)

    def _product(self, hidden: Tensor) -> Tensor:
        return linear(hidden.float(), self._codes.dequantized(), self._bias)


class CodedReference(ReferenceKernels):
    """See `Kernels`. Weights are `CodedWeight`."""

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        dtype: torch.dtype | None = None,
        keeps_rows: bool = False,
    ) -> Linear:
        assert isinstance(weight, CodedWeight)
        return CodedLinear(weight, bias, dtype or weight.dtype)
