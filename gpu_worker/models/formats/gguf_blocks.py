"""Blocks of GGUF files, dequantized in plain PyTorch.

A block has 32 or 256 consecutive weights of a row, their scales in float16, and for 256 weights scales of its
parts in 4, 6 or 8 bits. The layouts are those of github.com/ggml-org/ggml, src/ggml-common.h. `d` is a scale
and `m` a smallest weight; `qh` has the high bits of the numbers whose low bits are in `qs`.

    Q4_0    d, qs[16]                               Q2_K    scales[16], qs[64], d, m
    Q4_1    d, m, qs[16]                            Q3_K    qh[32], qs[64], scales[12], d
    Q5_0    d, qh[4], qs[16]                        Q4_K    d, m, scales[12], qs[128]
    Q5_1    d, m, qh[4], qs[16]                     Q5_K    d, m, scales[12], qh[32], qs[128]
    Q8_0    d, qs[32]                               Q6_K    qs[128], qh[64], scales[16], d
    IQ4_NL  d, qs[16]                               IQ4_XS  d, high scales[2], low scales[4], qs[128]
    MXFP4   exponent, qs[16]                        TQ1_0   qs[48], qh[4], d
                                                    TQ2_0   qs[64], d
    IQ1_S   d, qs[32], high bits and scales[16]     IQ2_XXS d, (qs[4], signs and scale[4])[8]
    IQ1_M   qs[32], qh[16], scales and d[8]         IQ2_XS  d, qs[64], scales[8]
    IQ3_XXS d, qs[64], signs and scales[32]         IQ2_S   d, qs[64], qh[8], scales[8]
    IQ3_S   d, qs[64], qh[8], signs[32], scales[4]

Numbers of the last seven are places in tables of many thousand weights, which transformers has. There are at
most 16 weights in a table: so parts have the number of the weight, which takes 4 bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.products import FP4
from ops.model_directory.gguf.file import TYPES


@dataclass(frozen=True, slots=True)
class Parts:
    """What blocks have. A weight is its number, or that number's level, times its scale, plus its shift."""

    numbers: Tensor
    """int8, or of levels uint8, [n, weights of a block]."""
    scales: Tensor
    """float32 [n, parts of a block]. With factors: whole numbers of 8 bits at most, as shifts."""
    shifts: Tensor | None = None
    """As `scales`. None: 0."""
    factors: Tensor | None = None
    """Factor of a block's scales, float32 [n, 1]. None: 1."""
    shift_factors: Tensor | None = None
    """Factor of a block's shifts. None: 1."""
    levels: tuple[float, ...] | None = None
    """Level of each number of 4 bits. None: the numbers themselves."""

    def whole_scales(self) -> Tensor:
        """Scales times factors."""
        return self.scales if self.factors is None else self.factors * self.scales

    def whole_shifts(self) -> Tensor | None:
        """Shifts times factors."""
        if self.shifts is None or self.shift_factors is None:
            return self.shifts
        return self.shift_factors * self.shifts


def parts_of(kind: str, blocks: Tensor) -> Parts:
    """The parts of blocks, uint8 [n, bytes of a block], of type `kind`."""
    return _TABLES[kind](blocks) if kind in _TABLES else _KINDS[kind](blocks)


def dequantized(kind: str, blocks: Tensor) -> Tensor:
    """Weights, float32 [n, weights of a block], of blocks, uint8 [n, bytes of a block], of type `kind`."""
    if kind in _TABLES:
        return _from_table(kind, blocks)
    parts = parts_of(kind, blocks)
    numbers = parts.numbers
    if parts.levels is None:
        weights = numbers.float()
    else:
        weights = torch.tensor(parts.levels, device=numbers.device)[numbers.int()]
    each = weights.shape[1] // parts.scales.shape[1]
    weights *= parts.whole_scales().repeat_interleave(each, 1)
    shifts = parts.whole_shifts()
    return weights if shifts is None else weights.add_(shifts.repeat_interleave(each, 1))


def scales_and_shifts(kind: str, blocks: Tensor) -> tuple[Tensor, Tensor] | None:
    """Scales, float16, and shifts, float32, each [n, groups of 32], of a type with 4 bits.

    A weight is (number - 8) * scale + shift, with numbers from 0 to 15. Shifts of Q4_0 are 0. Scales of Q4_K
    are products, which are rounded to float16. None: `kind` has more or fewer bits.
    """
    if kind == "Q4_0":
        return blocks[:, :2].contiguous().view(torch.float16), torch.zeros(len(blocks), 1)
    if kind == "Q4_1":
        scales, least = blocks[:, :2].contiguous().view(torch.float16), _half(blocks, 2)
    elif kind == "Q4_K":
        wide, minus = _scales_of_32(blocks)
        scales, least = (_half(blocks, 0) * wide).half(), -_half(blocks, 2) * minus
    else:
        return None
    return scales, least + 8 * scales.float()


def _half(blocks: Tensor, place: int) -> Tensor:
    """The float16 at a byte of each block, as float32 [n, 1]."""
    return blocks[:, place : place + 2].contiguous().view(torch.float16).float()


def _parts(octets: Tensor, bits: int, run: int) -> Tensor:
    """Numbers of `bits` bits: the lowest of `run` bytes, then the next of the same bytes, and so on."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=octets.device)[:, None]
    return (octets.view(len(octets), -1, 1, run) >> shifts & (1 << bits) - 1).flatten(1)


def _fifth_bits(blocks: Tensor, place: int) -> Tensor:
    """16 for each of 32 numbers whose bit is set in the 4 bytes at `place`, otherwise 0."""
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    return (blocks[:, place : place + 4, None] >> shifts & 1).flatten(1) << 4


def _q4_0(blocks: Tensor) -> Parts:
    return Parts(_parts(blocks[:, 2:], 4, 16), _half(blocks, 0), levels=_WHOLE[8])


def _q4_1(blocks: Tensor) -> Parts:
    return Parts(_parts(blocks[:, 4:], 4, 16), _half(blocks, 0), _half(blocks, 2), levels=_WHOLE[0])


def _q5_0(blocks: Tensor) -> Parts:
    numbers = _parts(blocks[:, 6:], 4, 16) | _fifth_bits(blocks, 2)
    return Parts(numbers.view(torch.int8) - 16, _half(blocks, 0))


def _q5_1(blocks: Tensor) -> Parts:
    numbers = _parts(blocks[:, 8:], 4, 16) | _fifth_bits(blocks, 4)
    return Parts(numbers.view(torch.int8), _half(blocks, 0), _half(blocks, 2))


def _q8_0(blocks: Tensor) -> Parts:
    return Parts(blocks[:, 2:].view(torch.int8), _half(blocks, 0))


def _q2_k(blocks: Tensor) -> Parts:
    packed, numbers = blocks[:, :16], _parts(blocks[:, 16:80], 2, 32)
    scales, least = (packed & 15).float(), (packed >> 4).float()
    return Parts(numbers, scales, -least, _half(blocks, 80), _half(blocks, 82), _WHOLE[0])


def _q3_k(blocks: Tensor) -> Parts:
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    scales = torch.cat((low & 15, low >> 4), 1) | _parts(high, 2, 4) << 4
    numbers = _parts(blocks[:, 32:96], 2, 32) | _parts(blocks[:, :32], 1, 32) << 2
    return Parts(numbers, scales.float() - 32, factors=_half(blocks, 108), levels=_WHOLE[4])


def _q4_k(blocks: Tensor) -> Parts:
    scales, least = _scales_of_32(blocks)
    numbers = _parts(blocks[:, 16:], 4, 32)
    return Parts(numbers, scales, -least, _half(blocks, 0), _half(blocks, 2), _WHOLE[0])


def _q5_k(blocks: Tensor) -> Parts:
    scales, least = _scales_of_32(blocks)
    numbers = _parts(blocks[:, 48:], 4, 32) | _parts(blocks[:, 16:48], 1, 32) << 4
    return Parts(numbers.view(torch.int8), scales, -least, _half(blocks, 0), _half(blocks, 2))


def _q6_k(blocks: Tensor) -> Parts:
    numbers = _parts(blocks[:, :128], 4, 64) | _parts(blocks[:, 128:192], 2, 32) << 4
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    return Parts(numbers.view(torch.int8) - 32, scales, factors=_half(blocks, 208))


def _scales_of_32(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and smallest weights, below zero, of 8 parts of Q4_K and Q5_K, without factors, float32 [n, 8].

    Each has 6 bits. The first four scales are in the low bits of bytes 0 to 3, the first four minima in those
    of bytes 4 to 7. The others have their low 4 bits in bytes 8 to 11, and 2 in the high bits of the former.
    """
    first, second, third = blocks[:, 4:16].view(len(blocks), 3, 4).unbind(1)
    scales = torch.cat((first & 63, third & 15 | first >> 2 & 48), 1).float()
    least = torch.cat((second & 63, third >> 4 | second >> 2 & 48), 1).float()
    return scales, least


def _iq4_nl(blocks: Tensor) -> Parts:
    return Parts(_parts(blocks[:, 2:], 4, 16), _half(blocks, 0), levels=_LEVELS)


def _iq4_xs(blocks: Tensor) -> Parts:
    high = blocks[:, 2:4, None] >> torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device) & 3
    low = blocks[:, 4:8, None] >> torch.tensor((0, 4), dtype=torch.uint8, device=blocks.device) & 15
    scales = (low.flatten(1) | high.flatten(1) << 4).float() - 32
    return Parts(_parts(blocks[:, 8:], 4, 16), scales, factors=_half(blocks, 0), levels=_LEVELS)


def _mxfp4(blocks: Tensor) -> Parts:
    return Parts(_parts(blocks[:, 1:], 4, 16), torch.exp2(blocks[:, :1].float() - 127), levels=_FP4)


def _tq1_0(blocks: Tensor) -> Parts:
    """Five numbers from 0 to 2 in a byte, which is the fraction that they are in base 3, of 256."""
    digits = []
    for first, last, count in ((0, 32, 5), (32, 48, 5), (48, 52, 4)):
        powers = 3 ** torch.arange(count, dtype=torch.int32, device=blocks.device)[:, None]
        digits.append(((blocks[:, None, first:last].int() * powers & 255) * 3 >> 8).flatten(1))
    return Parts(torch.cat(digits, 1).to(torch.uint8), _half(blocks, 52), levels=_WHOLE[1])


def _tq2_0(blocks: Tensor) -> Parts:
    return Parts(_parts(blocks[:, :64], 2, 32), _half(blocks, 64), levels=_WHOLE[1])


def _in_levels(kind: str, blocks: Tensor, scales: Tensor, factor: Tensor, levels: tuple[float, ...]) -> Parts:
    """Parts of a type whose weights are in a table. `scales`: [n, parts of a block], as the file has them.
    `levels`: the weights in the table."""
    scales = 2 * scales.float() + 1
    each = (scales * factor).repeat_interleave(256 // scales.shape[1], 1)
    middles = torch.tensor([(low + high) / 2 for low, high in pairwise(levels)], device=blocks.device)
    numbers = torch.bucketize((_from_table(kind, blocks) / each).nan_to_num(), middles)
    return Parts(
        numbers.to(torch.uint8), scales, factors=factor, levels=(*levels, *[0.0] * (16 - len(levels)))
    )


def _nibbles(octets: Tensor) -> Tensor:
    """The low 4 bits of each byte, and then its high ones."""
    return torch.stack((octets & 15, octets >> 4), 2).flatten(1)


def _iq1_s(blocks: Tensor) -> Parts:
    scales = blocks[:, 35:50:2] >> 4 & 7
    return _in_levels("IQ1_S", blocks, scales, _half(blocks, 0) / 8, _ALMOST_WHOLE)


def _iq1_m(blocks: Tensor) -> Parts:
    """Two bytes have scales of four parts, 3 bits each, and 4 bits of the factor."""
    words = blocks[:, 48::2].int() | blocks[:, 49::2].int() << 8
    shifts = torch.arange(4, dtype=torch.int32, device=blocks.device)
    scales = (words[:, :, None] >> 3 * shifts & 7).flatten(1)
    factor = (words >> 12 << 4 * shifts).sum(1, keepdim=True, dtype=torch.int32)
    return _in_levels(
        "IQ1_M", blocks, scales, factor.to(torch.int16).view(torch.float16).float() / 8, _ALMOST_WHOLE
    )


def _iq2_xxs(blocks: Tensor) -> Parts:
    return _in_levels("IQ2_XXS", blocks, blocks[:, 9::8] >> 4, _half(blocks, 0) / 8, _THREE)


def _iq2_xs(blocks: Tensor) -> Parts:
    return _in_levels("IQ2_XS", blocks, _nibbles(blocks[:, 66:]), _half(blocks, 0) / 8, _THREE)


def _iq2_s(blocks: Tensor) -> Parts:
    return _in_levels("IQ2_S", blocks, _nibbles(blocks[:, 74:]), _half(blocks, 0) / 8, _THREE)


def _iq3_xxs(blocks: Tensor) -> Parts:
    return _in_levels("IQ3_XXS", blocks, blocks[:, 69::4] >> 4, _half(blocks, 0) / 4, _EIGHT)


def _iq3_s(blocks: Tensor) -> Parts:
    return _in_levels("IQ3_S", blocks, _nibbles(blocks[:, 106:]), _half(blocks, 0), _ODD)


def _from_table(kind: str, blocks: Tensor) -> Tensor:
    number = next(number for number, (name, _, _) in TYPES.items() if name == kind)
    try:
        from transformers.integrations.gguf.dequant import dequantize

        found: Tensor = dequantize(blocks.contiguous(), number, torch.float32)
    except (ImportError, ValueError) as error:
        raise ModelError(f"{kind} of GGUF files needs a newer version of transformers: {error}") from error
    return found.view(len(blocks), -1)


_WHOLE = {zero: tuple(float(number - zero) for number in range(16)) for zero in (0, 1, 4, 8)}
"""Weights of whole numbers, by the number that means zero."""
_LEVELS = (-127.0, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""Weights of IQ4_NL and IQ4_XS, by their number."""
_FP4 = tuple(FP4.tolist())
_THREE = (-43.0, -25, -8, 8, 25, 43)
"""Weights in the tables of IQ2."""
_EIGHT = (-62.0, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62)
"""Weights in the table of IQ3_XXS."""
_ODD = tuple(float(number) for number in range(-15, 16, 2))
"""Weights in the table of IQ3_S."""
_ALMOST_WHOLE = (-9.0, -7, -1, 1, 7, 9)
"""Eight times the weights of IQ1: -1, 0 or 1, and an eighth more or less."""
_KINDS: Mapping[str, Callable[[Tensor], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "TQ1_0": _tq1_0,
    "TQ2_0": _tq2_0,
}
_TABLES: Mapping[str, Callable[[Tensor], Parts]] = {
    "IQ1_S": _iq1_s,
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _iq2_xxs,
    "IQ2_XS": _iq2_xs,
    "IQ2_S": _iq2_s,
    "IQ3_XXS": _iq3_xxs,
    "IQ3_S": _iq3_s,
}
