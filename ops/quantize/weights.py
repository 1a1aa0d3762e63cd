"""Weights [out, in] as compressed-tensors stores them (github.com/vllm-project/compressed-tensors).

    int4    weight_packed, int32 [out, words]: numbers from -8 to 7, 8 higher, the first in the lowest bits
            weight_scale [out, groups of 32 inputs], weight_shape
    int8    weight, int8 [out, in], and weight_scale [out, 1]
    fp8     weight, e4m3 [out, in], and weight_scale [out, 1]

Scales have the type of the model. Numbers are the nearest multiples of these.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_worker.kernels.products import GROUP
from gpu_worker.kernels.reference.rows import FP8, LARGEST

Encoded = dict[str, Tensor]
"""Tensors of a weight by the ends of their names."""

SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8)
"""Shares of a group's largest weight that are tried as the range of 4 bits: cutting it off may cost less than
coarser steps for all."""


def encode_int4(weight: Tensor, dtype: torch.dtype) -> Encoded:
    """`weight`: [out, in], `in` a multiple of `GROUP`. `dtype`: of the scales."""
    out, inputs = weight.shape
    groups = weight.float().view(out, -1, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    extreme = torch.where(-low > high, low, high)
    best = torch.full(extreme.shape, torch.inf)
    scales, numbers = torch.zeros_like(extreme), torch.zeros_like(groups)
    for shrink in SHRINKS:
        tried = (shrink * extreme / -8).to(dtype).float()
        rounded = (groups / torch.where(tried == 0, 1.0, tried)[..., None]).round().clamp(-8, 7)
        error = (rounded * tried[..., None] - groups).square().sum(-1)
        better = error < best
        best, scales = torch.where(better, error, best), torch.where(better, tried, scales)
        numbers = torch.where(better[..., None], rounded, numbers)
    shifts = torch.arange(0, 32, 4)
    words = ((numbers.view(out, -1, 8).long() + 8) << shifts).sum(-1)
    return {
        "weight_packed": words.to(torch.int32),  # the same 32 bits
        "weight_scale": scales.to(dtype),
        "weight_shape": torch.tensor([out, inputs]),
    }


def encode_int8(weight: Tensor, dtype: torch.dtype) -> Encoded:
    """`weight`: [out, in]. `dtype`: of the scales."""
    scales, wide = _row_scales(weight, 127, dtype)
    return {"weight": wide.round().clamp(-127, 127).to(torch.int8), "weight_scale": scales}


def encode_fp8(weight: Tensor, dtype: torch.dtype) -> Encoded:
    """`weight`: [out, in]. `dtype`: of the scales."""
    scales, wide = _row_scales(weight, LARGEST, dtype)
    return {"weight": wide.clamp(-LARGEST, LARGEST).to(FP8), "weight_scale": scales}


def _row_scales(weight: Tensor, most: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scales [out, 1], and the weight divided by them."""
    scales = (weight.float().abs().amax(1, keepdim=True) / most).to(dtype)
    return scales, weight.float() / torch.where(scales == 0, 1.0, scales.float())


@dataclass(frozen=True, slots=True)
class Target:
    """A type to which weights are quantized."""

    encode: Callable[[Tensor, torch.dtype], Encoded]
    format: str
    """Name of the format in compressed-tensors."""
    weights: Mapping[str, Any]
    """What the configuration says of weights."""
    activations: Mapping[str, Any] | None = None
    """What it says of activations. None: they are not quantized."""
    multiple: int = 1
    """Inputs of a weight that can be quantized are a multiple of it."""

    def config(self, ignored: list[str]) -> dict[str, Any]:
        """`quantization_config`. `ignored`: products that stay plain."""
        group = {
            "targets": ["Linear"],
            "weights": {"symmetric": True, "dynamic": False, **self.weights},
            "input_activations": None if self.activations is None else dict(self.activations),
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": ignored,
        }


def _each_token(kind: str) -> dict[str, Any]:
    """Activations with a scale for each token, computed in every product."""
    return {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "token", "dynamic": True}


TARGETS: Mapping[str, Target] = {
    "int4": Target(
        encode_int4,
        "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP},
        multiple=GROUP,
    ),
    "int8": Target(
        encode_int8,
        "int-quantized",
        {"num_bits": 8, "type": "int", "strategy": "channel"},
        _each_token("int"),
    ),
    "fp8": Target(
        encode_fp8,
        "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "channel"},
        _each_token("float"),
    ),
}
"""Types by their names."""
