"""Weights of one byte, fp8 or int8, with scales: of the whole weight, of each output, or of squares.

    weight                            fp8 or int8 [out, in]
    weight_scale, weight_scale_inv    one number; [out] or [out, 1]; or one for each square

Both names of the scale mean a factor of the weight. Squares of 128 x 128 are those of DeepSeek-V3
(arXiv:2412.19437, section 3.3.2). Scales of activations are not used, because activations are not quantized.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.models.formats.format import Tensors, choice, pair
from gpu_worker.models.formats.stored import StoredWeight, Whole, spread
from gpu_worker.models.values import Values

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)

SCALES = ("weight_scale", "weight_scale_inv")

UNUSED = ("input_scale", "activation_scale", "input_scale_ub", "input_zero_point")
"""Ends of names of tensors for activations."""


@dataclass(frozen=True, slots=True)
class ScaledFormat:
    """See `Format`."""

    name: str
    block: tuple[int, int] | None = None
    """Outputs and inputs that share a scale. None: the shape of the scales says whether it is one for the
    weight, or one for each output."""
    ends: tuple[str, ...] = ("weight", *SCALES, *UNUSED)

    def weight(self, product: str, tensors: Tensors) -> StoredWeight | None:
        if (weight := tensors.get("weight")) is None or weight.dtype not in FP8:
            return None
        return scaled_weight(product, tensors, self.block)


def scaled_weight(product: str, tensors: Tensors, block: tuple[int, int] | None) -> StoredWeight:
    """The weight of a product: see `ScaledFormat.block`. Raises `ModelError`."""
    weight = tensors["weight"]
    if weight.dim() != 2:
        raise ModelError(f"tensor {product}weight is quantized and has shape {list(weight.shape)}")
    end = next((name for name in SCALES if name in tensors), None)
    if end is None:
        raise ModelError(f"tensor {product}{SCALES[0]} is missing from the checkpoint")
    numbers, scales = Whole(weight), tensors[end]
    if block is None:
        block = numbers.shape if scales.numel() == 1 else (1, numbers.shape[1])
    zeros = tensors.get("weight_zero_point")
    return StoredWeight(
        numbers,
        spread(product + end, factors(scales), numbers.shape, block),
        block,
        None if zeros is None else spread(f"{product}weight_zero_point", zeros, numbers.shape, block).float(),
    )


def factors(scales: Tensor) -> Tensor:
    """Scales in float32. Bytes are powers of two, 2 ** (byte - 127)."""
    return scales.float() if scales.dtype != torch.uint8 else torch.exp2(scales.float() - 127)


def read_fp8(values: Values) -> ScaledFormat:
    """Checkpoints of DeepSeek and Qwen, with squares, and of other tools, without. Raises `ModelError`."""
    choice(values, "fmt", ("e4m3", "float8_e4m3fn", "e5m2"), "e4m3")
    return ScaledFormat("fp8", pair(values, "weight_block_size"))


def read_fbgemm_fp8(values: Values) -> ScaledFormat:
    """Checkpoints of Llama 3.1 405B, with a scale for each output."""
    return ScaledFormat("fbgemm_fp8")
