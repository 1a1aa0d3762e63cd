"""Checkpoints of GPTQ (Frantar et al. 2022) and of AWQ (Lin et al. 2023): whole numbers with zeros.

           GPTQ                                   AWQ, "gemm"
    qweight    [in / numbers, out]    packed along in     [in, out / 8]         packed along out
    qzeros     [groups, out / numbers]                    [groups, out / 8]
    scales     [groups, out]                              [groups, out]
    g_idx      [in]: the group of each input              -

All words are int32. A word of GPTQ has `numbers` numbers in order. A word of AWQ has eight in the order 0, 2,
4, 6, 1, 3, 5, 7. Zeros of GPTQ are stored one lower, but not in its second version.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.models.formats.format import KEY, Tensors, choice
from gpu_worker.models.formats.packed import Layout, Packed, Turned, unpack
from gpu_worker.models.formats.stored import Numbers, StoredWeight, spread
from gpu_worker.models.values import Values

_NEEDED = ("qzeros", "scales")


@dataclass(frozen=True, slots=True)
class GptqFormat:
    """See `Format`."""

    name: str
    bits: int
    group_size: int
    """Inputs of a group. -1: all."""
    along_out: bool = False
    """Words hold numbers of several outputs, as in AWQ."""
    zero_offset: int = 0
    """Number by which zeros are stored lower."""
    ends: tuple[str, ...] = ("qweight", *_NEEDED, "g_idx")

    def weight(self, product: str, tensors: Tensors) -> StoredWeight | None:
        if (words := tensors.get("qweight")) is None:
            return None
        for end in _NEEDED:
            if end not in tensors:
                raise ModelError(f"tensor {product}{end} is missing from the checkpoint")
        each = 32 // self.bits
        layout: Layout = "halves" if self.along_out else "low"
        if words.dtype != torch.int32 or words.dim() != 2:
            found = str(words.dtype).removeprefix("torch.")
            raise ModelError(f"tensor {product}qweight is of type {found} and shape {list(words.shape)}")
        numbers: Numbers
        if self.along_out:
            numbers = Turned(Packed(words, self.bits, words.shape[1] * each, layout))
        else:
            numbers = Packed(words.t(), self.bits, len(words) * each)
        out, inputs = numbers.shape
        block = 1, (inputs if self.group_size < 0 else self.group_size)
        zeros = unpack(tensors["qzeros"], self.bits, layout)[:, :out].float() + self.zero_offset
        return StoredWeight(
            numbers,
            spread(f"{product}scales", tensors["scales"].t(), numbers.shape, block).float(),
            block,
            spread(f"{product}qzeros", zeros.t(), numbers.shape, block),
            order_of(f"{product}g_idx", tensors.get("g_idx"), inputs, block[1]),
        )


def order_of(name: str, groups: Tensor | None, inputs: int, size: int) -> Tensor | None:
    """`StoredWeight.order` from the group of each input; None if groups of `size` inputs are consecutive.

    Negative groups mean that there is no order. Raises `ModelError` for groups that do not exist.
    """
    if groups is None or (groups < 0).all() or torch.equal(groups, torch.arange(inputs) // size):
        return None
    if groups.shape != (inputs,) or not ((groups >= 0) & (groups < -(-inputs // size))).all():
        raise ModelError(f"tensor {name}: a group of {size} inputs is needed for each of {inputs}")
    return groups.long()


def read_gptq(values: Values) -> GptqFormat:
    """Checkpoints of AutoGPTQ and GPTQModel. Raises `ModelError`."""
    bits = choice(values, "bits", (4, 8, 2))
    version = choice(values, "checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    rules = values.object("dynamic").values.items()
    if own := [key for key, rule in rules if rule and not key.startswith("-:")]:
        raise values.wrong(f"{KEY}.dynamic", f"{own[0]!r}: another format for some weights is not supported")
    return GptqFormat(f"gptq, {bits} bits", bits, _group_size(values), zero_offset=int(version == "gptq"))


def read_awq(values: Values) -> GptqFormat:
    """Checkpoints of AutoAWQ. Raises `ModelError`."""
    choice(values, "bits", (4,), 4)
    choice(values, "version", ("gemm", "GEMM"), "gemm")
    choice(values, "backend", ("autoawq",), "autoawq")
    return GptqFormat("awq", 4, _group_size(values), along_out=True)


def _group_size(values: Values) -> int:
    return -1 if values.get("group_size", -1) == -1 else values.positive("group_size")
