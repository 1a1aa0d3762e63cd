"""Weights of fp4 (e2m1) in groups of inputs: NVFP4 of 16, with two scales, and MXFP4 of 32.

                              NVFP4                                         MXFP4
    numbers, two a byte       weight_packed [out, in / 2]                   weight_packed [out, in / 2]
    scale of a group          weight_scale, fp8 [out, in / 16]              weight_scale, 2^(byte - 127)
    scale of the weight       weight_global_scale, which divides            -

The first number of a byte is in its low bits. Model Optimizer names the numbers `weight`, and has
`weight_scale_2` as the scale of the weight, which multiplies. MXFP4 is of the OCP Microscaling Formats
specification, version 1.0, section 5.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.products import FP4
from gpu_worker.models.formats.format import Tensors
from gpu_worker.models.formats.packed import Packed
from gpu_worker.models.formats.scaled import factors
from gpu_worker.models.formats.stored import StoredWeight, spread

GLOBAL = "weight_global_scale"
SECOND = "weight_scale_2"

NUMBERS = ("weight_packed", "weight")


@dataclass(frozen=True, slots=True)
class Fp4Format:
    """See `Format`."""

    name: str
    group_size: int
    ends: tuple[str, ...] = (*NUMBERS, "weight_scale", GLOBAL, SECOND, "input_global_scale", "input_scale")

    def weight(self, product: str, tensors: Tensors) -> StoredWeight | None:
        packed = next((tensors[end] for end in NUMBERS if end in tensors), None)
        if packed is None or packed.dtype != torch.uint8:
            return None
        if "weight_scale" not in tensors:
            raise ModelError(f"tensor {product}weight_scale is missing from the checkpoint")
        stored = tensors["weight_scale"]
        if stored.dtype != torch.uint8 and not (GLOBAL in tensors or SECOND in tensors):
            raise ModelError(f"tensor {product}{GLOBAL} is missing from the checkpoint")
        numbers, block = Packed(packed, 4, 2 * packed.shape[1], table=FP4), (1, self.group_size)
        scales = spread(f"{product}weight_scale", factors(stored), numbers.shape, block)
        if (divisor := tensors.get(GLOBAL)) is not None:
            return StoredWeight(numbers, scales / divisor.float(), block, factor=1 / _one(divisor))
        if (factor := tensors.get(SECOND)) is not None:
            return StoredWeight(numbers, scales * factor.float(), block, factor=_one(factor))
        return StoredWeight(numbers, scales, block)


def _one(numbers: Tensor) -> float:
    """The scale of a weight; 1 if there are several."""
    return float(numbers) if numbers.numel() == 1 else 1.0
