"""The products of `linear.py` by oneDNN, through PyTorch: it may know instructions that the C++ kernels do
not use. By rounding, the result of a row may depend on the other rows.
"""

import os

import torch
from torch import Tensor

from gpu_worker.kernels.cpu import build

ROWS = 32
"""Number of rows for which oneDNN chooses the layout of the weights."""

UNITS = {"amx_bf16", "amx_fp16", "avx512_fp16", "avx10"}
"""Features of a processor with which oneDNN computes in another way than with AVX-512."""


def arithmetic() -> str:
    """The instructions that oneDNN may use: they decide how it rounds.

    Two machines of which this is the same get the same bits for the same products.
    """
    limits = (os.environ.get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"))
    return " ".join(("oneDNN", *sorted(build.features() & UNITS), *filter(None, limits)))


class OneDnnLinear:
    """See `PackedLinear`. `rows` needs the original weight, which is kept with `keeps_rows`."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None = None, keeps_rows: bool = False, wide: bool = False
    ) -> None:
        """`wide`: results are float32, but rounded to the inputs' type."""
        self._dtype = torch.float32 if wide else weight.dtype
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS)
        self._bias = bias
        self._given = weight if keeps_rows else None

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] to [rows, out]."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return out.to(self._dtype)

    def add_to(self, x: Tensor, out: Tensor) -> None:
        """Add the product to out [rows, out]."""
        out += self(x)

    def rows(self, ids: Tensor) -> Tensor:
        """Rows [n, in] of the weight. `ids`: integers [n]. Raises `IndexError` for an id without a row."""
        if self._given is None:
            raise ValueError("the rows were not kept")
        return self._given.index_select(0, ids.long())
