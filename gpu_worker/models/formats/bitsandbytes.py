"""Checkpoints of bitsandbytes: nf4 and fp4 (Dettmers et al. 2023, QLoRA), and int8 (Dettmers et al. 2022).

    4 bits    weight                        two numbers a byte, the first in the high bits, in any shape
              weight.quant_map              float32 [16]: the number that the bits mean
              weight.absmax                 a scale for each block of the weight's numbers in a row
              weight.quant_state...         JSON, as bytes: shape and size of blocks
    int8      weight, SCB                   int8 [out, in], and 127 times the scale of each output

Scales of 4 bits may be quantized, too: absmax is then bytes, and a scale is nested_quant_map[absmax] *
nested_absmax + nested_offset.
"""

import json
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.models.formats.format import Tensors
from gpu_worker.models.formats.packed import Packed
from gpu_worker.models.formats.stored import StoredWeight, Whole, spread
from gpu_worker.models.values import Values

STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
ABSMAX, TABLE = "weight.absmax", "weight.quant_map"
NESTED_ABSMAX, NESTED_TABLE = "weight.nested_absmax", "weight.nested_quant_map"
SCALES = "SCB"


@dataclass(frozen=True, slots=True)
class BitsAndBytesFormat:
    """See `Format`."""

    name: str = "bitsandbytes"
    ends: tuple[str, ...] = (
        *("weight", "weight_format", SCALES, ABSMAX, TABLE, NESTED_ABSMAX, NESTED_TABLE, *STATES),
    )

    def weight(self, product: str, tensors: Tensors) -> StoredWeight | None:
        if (weight := tensors.get("weight")) is None:
            return None
        if SCALES in tensors:
            numbers = Whole(weight)
            block = 1, numbers.shape[1]
            scales = spread(product + SCALES, tensors[SCALES], numbers.shape, block).float() / 127
            return StoredWeight(numbers, scales, block)
        state = next((tensors[end] for end in STATES if end in tensors), None)
        return None if state is None else _four_bits(product, weight, state, tensors)


def _four_bits(product: str, weight: Tensor, state: Tensor, tensors: Tensors) -> StoredWeight:
    try:
        given = json.loads(bytes(state.tolist()))
        out, inputs, size, nested_size = map(
            int, (*given["shape"], given["blocksize"], given.get("nested_blocksize", 1))
        )
        offset = float(given.get("nested_offset", 0.0))
        if min(out, inputs, size, nested_size) < 1:
            raise ValueError("sizes are positive")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"tensor {product}weight.quant_state is not understood: {error!r}") from error
    octets = weight.contiguous().view(torch.uint8)
    if inputs % size or octets.numel() != out * inputs // 2:
        found = f"{octets.numel()} bytes, in blocks of {size}"
        raise ModelError(f"tensor {product}weight: a weight [{out}, {inputs}] of 4 bits has not {found}")
    count = out * inputs // size

    def take(end: str, numel: int) -> Tensor:
        if end not in tensors:
            raise ModelError(f"tensor {product}{end} is missing from the checkpoint")
        if tensors[end].numel() != numel:
            raise ModelError(f"tensor {product}{end} has not {numel} numbers")
        return tensors[end].flatten()

    numbers = Packed(octets.view(out, inputs // 2), 4, inputs, "high", take(TABLE, 16).float())
    scales = take(ABSMAX, count)
    if scales.dtype == torch.uint8:
        most = take(NESTED_ABSMAX, -(-count // nested_size)).float().repeat_interleave(nested_size)[:count]
        scales = take(NESTED_TABLE, 256).float()[scales.int()] * most + offset
    return StoredWeight(numbers, scales.float().view(out, inputs // size), (1, size))


def read_bitsandbytes(values: Values) -> BitsAndBytesFormat:
    """Checkpoints with weights in 8 bits, nf4 or fp4; a weight's own tensors say which."""
    return BitsAndBytesFormat()
