"""Checkpoints of compressed-tensors (github.com/vllm-project/compressed-tensors).

`config_groups` says how the weights of products are quantized. Groups may have formats of several kinds,
which the tensors of a product tell apart, but not one kind in several sizes. What a group says of
activations is not used.

    float-quantized, int-quantized    weight, fp8 or int8 [out, in]: see `scaled.py`; also with groups
    mxfp8-quantized                   the same, with groups of 32 inputs whose scales are powers of two
    pack-quantized                    weight_packed, int32 [out, words]: whole numbers of 2, 4 or 8 bits
    nvfp4-, mxfp4-pack-quantized      see `fp4.py`

Zeros of pack-quantized are packed along `out`, [words, groups]. Without zeros a half of the numbers' range
means zero.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from gpu_worker.errors import ModelError
from gpu_worker.models.formats.format import KEY, Format, Tensors, choice, pair
from gpu_worker.models.formats.fp4 import Fp4Format
from gpu_worker.models.formats.gptq import order_of
from gpu_worker.models.formats.mixed import MixedFormat
from gpu_worker.models.formats.packed import Packed, unpack
from gpu_worker.models.formats.scaled import FP8, SCALES, UNUSED, scaled_weight
from gpu_worker.models.formats.stored import StoredWeight, spread
from gpu_worker.models.values import Values

BYTES = ("float-quantized", "int-quantized", "naive-quantized", "mxfp8-quantized")
FP4: Mapping[str, tuple[str, int]] = {
    "nvfp4-pack-quantized": ("tensor_group", 16),
    "mxfp4-pack-quantized": ("group", 32),
}
"""Strategy and size of groups of formats of fp4."""
PACKED = "pack-quantized"

ZEROS = "weight_zero_point"
ORDER = "weight_g_idx"


@dataclass(frozen=True, slots=True)
class BytesFormat:
    """See `Format`: weights of one byte each, whose type says whether they are fp8 or int8."""

    name: str = field(compare=False)
    block: tuple[int, int] | None
    """See `ScaledFormat.block`."""
    ends: tuple[str, ...] = ("weight", *SCALES, ZEROS, *UNUSED)

    def weight(self, product: str, tensors: Tensors) -> StoredWeight | None:
        weight = tensors.get("weight")
        if weight is None or weight.dtype not in (*FP8, torch.int8):
            return None
        return scaled_weight(product, tensors, self.block)


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """See `Format`: pack-quantized."""

    name: str
    bits: int
    group_size: int
    """Inputs of a group. 0: all."""
    ends: tuple[str, ...] = ("weight_packed", "weight_scale", "weight_shape", ZEROS, ORDER, *UNUSED)

    def weight(self, product: str, tensors: Tensors) -> StoredWeight | None:
        if (words := tensors.get("weight_packed")) is None:
            return None
        for end in ("weight_scale", "weight_shape"):
            if end not in tensors:
                raise ModelError(f"tensor {product}{end} is missing from the checkpoint")
        shape, each = tensors["weight_shape"].tolist(), 32 // self.bits
        if words.dtype != torch.int32 or len(shape) != 2 or words.shape != (shape[0], -(-shape[1] // each)):
            raise ModelError(
                f"tensor {product}weight_packed has shape {list(words.shape)}, not that of {shape}"
            )
        numbers = Packed(words, self.bits, shape[1])
        block = 1, self.group_size or shape[1]
        scales = spread(f"{product}weight_scale", tensors["weight_scale"], numbers.shape, block).float()
        if (packed := tensors.get(ZEROS)) is None:
            zeros = torch.full_like(scales, 1 << self.bits - 1)
        else:
            found = unpack(packed.t(), self.bits)[:, : shape[0]].t()
            zeros = spread(product + ZEROS, found, numbers.shape, block).float()
        order = order_of(product + ORDER, tensors.get(ORDER), shape[1], block[1])
        return StoredWeight(numbers, scales, block, zeros, order)


def read_compressed(values: Values) -> Format | None:
    """None: weights are not quantized. Raises `ModelError`."""
    groups = values.get("config_groups")
    if not groups:
        return None
    if not isinstance(groups, dict):
        raise values.wrong(f"{KEY}.config_groups", f"an object is needed, not {groups!r}"[:200])
    choice(values, "quantization_status", ("compressed", "frozen"), "compressed")
    if values.object("sparsity_config").get("format", "dense") != "dense":
        raise values.wrong(f"{KEY}.sparsity_config", "sparse weights are not supported")
    if online := [place for place in _transforms(values) if not str(place).startswith("weight")]:
        raise values.wrong(f"{KEY}.transform_config", f"{online[0]!r}: activations are not transformed")
    formats = list(dict.fromkeys(_group_format(values, name) for name in groups))
    if len({type(each) for each in formats}) < len(formats):
        names = ", ".join(each.name for each in formats)
        raise values.wrong(f"{KEY}.config_groups", f"groups that differ in size are not supported ({names})")
    if len(formats) == 1:
        return formats[0]
    # pack-quantized refuses numbers of the name `weight_packed` that are not its own.
    formats.sort(key=lambda each: isinstance(each, PackedFormat))
    return MixedFormat(" and ".join(each.name for each in formats), formats)


def _transforms(values: Values) -> Iterator[object]:
    """What is multiplied with Hadamard or other matrices. Those of weights lie in the weights already."""
    groups = values.object("transform_config").object("config_groups")
    for name in groups.values:
        given = groups.object(name).get("apply", [])
        for each in given if isinstance(given, list) else [given]:
            yield each.get("location") if isinstance(each, Mapping) else each


def _group_format(values: Values, name: str) -> Format:
    """The format of one of `config_groups`. Raises `ModelError`."""
    group, within = values.object("config_groups").get(name), f"config_groups.{name}."
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise values.wrong(f"{KEY}.{within}weights", "an object is needed")
    known = (*BYTES, PACKED, *FP4)
    own = Values(values.path, group)
    kind = (
        choice(own, "format", known, within=within) if own.get("format") else choice(values, "format", known)
    )
    return _format_of(kind, Values(values.path, group["weights"]), f"{within}weights.")


def _format_of(kind: str, weights: Values, within: str) -> Format:
    """The format `kind` of `weights`, which lie at `within` in `quantization_config`. Raises `ModelError`."""
    if kind in FP4:
        strategy, size = FP4[kind]
        choice(weights, "strategy", (strategy,), strategy, within)
        choice(weights, "group_size", (size,), size, within)
        return Fp4Format(kind, size)
    if kind == PACKED:
        bits = choice(weights, "num_bits", (4, 8, 2), within=within)
        strategy = choice(weights, "strategy", ("group", "channel"), within=within)
        return PackedFormat(
            f"{kind}, {bits} bits", bits, weights.positive("group_size") if strategy == "group" else 0
        )
    choice(weights, "num_bits", (8,), within=within)
    strategy = choice(weights, "strategy", ("tensor", "channel", "block", "group"), within=within)
    if strategy == "block":
        return BytesFormat(kind, pair(weights, "block_structure", within))
    return BytesFormat(kind, (1, weights.positive("group_size")) if strategy == "group" else None)
