"""Weights as a checkpoint has them: codes of at most 8 bits, and scales of groups of inputs.

    weight[o, i]  =  value(numbers[o, i]) * scale[o, i / size] + shift[o, i / size]

A scale is one of `scales`, times one of `factors` if there are any: some formats have scales of scales. A
shift is one of `shifts`, times one of `shift_factors` if there are any.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, Literal

import torch
from torch import Tensor

UNIT = 8
"""Groups have multiples of 8 inputs."""


@dataclass(frozen=True, slots=True)
class Codes:
    """See the module."""

    numbers: Tensor
    """A byte each, uint8 [out, in]."""
    size: int
    """Inputs of a group, a multiple of 8. The last group of a row may be smaller."""
    scales: Tensor
    """int8, float16 or float32 [out, groups]."""
    kind: Literal["table", "int8", "fp8"] = "int8"
    """Type of numbers: places in `table`, or bytes of int8 or e4m3."""
    table: Tensor | None = None
    """Value of each number, float32 [16]."""
    shifts: Tensor | None = None
    """int8, float16 or float32 [out, groups]. None: 0."""
    factors: Tensor | None = None
    """float32 [out, spans]. None: 1."""
    span: int = 0
    """Inputs that share a factor, a multiple of `size`. 0: all."""
    order: Tensor | None = None
    """Input of each column of `numbers`, int32 [in]. None: the same."""
    shift_factors: Tensor | None = None
    """As `factors`."""

    def __getitem__(self, rows: Any) -> "Codes":
        """The codes of some outputs."""
        taken: dict[str, Any] = {
            name: None if (each := getattr(self, name)) is None else each[rows]
            for name in ("numbers", "scales", "shifts", "factors", "shift_factors")
        }
        return replace(self, **taken)

    def to(self, device: torch.device) -> "Codes":
        """The same on a device."""
        tensors: dict[str, Any] = {
            field.name: value.to(device)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)

    def dequantized(self) -> Tensor:
        """The weight, float32 [out, in]."""
        width = self.numbers.shape[1]
        if self.table is not None:
            weight = self.table[self.numbers.int()]
        else:
            weight = self.numbers.view(torch.int8 if self.kind == "int8" else torch.float8_e4m3fn).float()
        weight *= _spread(self.whole_scales(), self.size, width)
        if (shifts := self.whole_shifts()) is not None:
            weight += _spread(shifts, self.size, width)
        if self.order is not None:
            weight = torch.empty_like(weight).index_copy_(1, self.order.long(), weight)
        return weight

    def whole_scales(self) -> Tensor:
        """The scale of each group, float32 [out, groups]."""
        return self._times(self.scales, self.factors)

    def whole_shifts(self) -> Tensor | None:
        """The shift of each group, float32 [out, groups]. None: 0."""
        return None if self.shifts is None else self._times(self.shifts, self.shift_factors)

    def _times(self, numbers: Tensor, factors: Tensor | None) -> Tensor:
        if factors is None:
            return numbers.float()
        each = self.span // self.size if self.span else numbers.shape[1]
        return numbers.float() * _spread(factors, each, numbers.shape[1])


def gathered(parts: Iterable[Codes | None], rows: int) -> Codes | None:
    """As `joined`, of codes that have `rows` outputs together. Their numbers are copied as they come.

    None also if one of `parts` is None.
    """
    numbers, found, start = None, list[Codes](), 0
    for part in parts:
        if part is None:
            return None
        if numbers is None:
            numbers = part.numbers.new_empty(rows, part.numbers.shape[1])
        taken = slice(start, start + len(part.numbers))
        numbers[taken] = part.numbers
        found.append(replace(part, numbers=numbers[taken]))
        start = taken.stop
    return joined(found, numbers)


def joined(parts: Sequence[Codes], numbers: Tensor | None = None) -> Codes | None:
    """Codes of several matrices, with the same inputs, as those of one. None: they do not go together.

    `numbers`: of all of them, one after the other, if they are there already.
    """
    if not all(each.kind == parts[0].kind and _same(each.table, parts[0].table) for each in parts):
        wide = [_as_int8(each) for each in parts]
        if any(each is None for each in wide):
            return None
        parts, numbers = [each for each in wide if each is not None], None
    first = parts[0]
    if not all(_same(first.order, each.order) for each in parts):
        return None
    size = math.gcd(*(each.size for each in parts))
    if size % UNIT:
        return None
    width = first.numbers.shape[1]
    every = [_in_groups_of(size, each, width) for each in parts]
    if len({each.span for each in every if each.span}) > 1:
        every = [
            replace(
                each,
                scales=each.whole_scales(),
                shifts=each.whole_shifts(),
                factors=None,
                shift_factors=None,
            )
            for each in every
        ]
    dtype = reduce(torch.promote_types, (each.scales.dtype for each in every))
    scales = [each.scales.to(dtype) for each in every]
    return replace(
        first,
        numbers=torch.cat([each.numbers for each in every]) if numbers is None else numbers,
        size=size,
        scales=torch.cat(scales),
        shifts=_cat_or(0, [each.shifts for each in every], scales),
        factors=_cat_or(1, [each.factors for each in every], scales),
        shift_factors=_cat_or(1, [each.shift_factors for each in every], scales),
        span=max(each.span for each in every),
    )


def narrowed(scales: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor | None]:
    """Scales [out, groups], and factors [out, 1] or None: float16 if that is exact, otherwise float32.

    `factor`: what scales may be multiples of. Without one, factors are powers of two, which move scales into
    the range of float16.
    """
    if (half := halved(scales)).dtype == torch.float16:
        return half, None
    if factor != 1.0:
        factors = torch.full((len(scales), 1), factor)
    else:
        factors = torch.exp2(scales.abs().amax(1, keepdim=True).clamp_min(2.0**-120).log2().floor())
    moved = (scales / factors).half()
    close = torch.isclose(moved.float() * factors, scales, rtol=2.0**-22, atol=0).all()
    return (moved, factors) if close else (scales, None)


def halved(numbers: Tensor) -> Tensor:
    """Numbers of float32 as float16 if that is exact."""
    return half if torch.equal((half := numbers.half()).float(), numbers) else numbers


def _spread(numbers: Tensor, size: int, width: int) -> Tensor:
    """The number of each input, [out, width], from those of groups of `size`."""
    return numbers.repeat_interleave(size, 1)[:, :width]


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)


def _as_int8(codes: Codes) -> Codes | None:
    """Codes of whole numbers as int8. None: their numbers are others."""
    if codes.kind == "int8":
        return codes
    table = codes.table
    if table is None or not torch.equal(table, table.to(torch.int8).float()):
        return None
    numbers = table.to(torch.int8).view(torch.uint8)[codes.numbers.int()]
    return replace(codes, numbers=numbers, kind="int8", table=None)


def _in_groups_of(size: int, codes: Codes, width: int) -> Codes:
    """The same codes in smaller groups. A factor of all inputs is one for the whole groups of `width`."""
    each, count = codes.size // size, -(-width // size)
    span = codes.span or codes.size * -(-width // codes.size)
    return replace(
        codes,
        size=size,
        scales=_spread(codes.scales, each, count),
        shifts=None if codes.shifts is None else _spread(codes.shifts, each, count),
        span=0 if codes.factors is None and codes.shift_factors is None else span,
    )


def _cat_or(value: int, parts: Sequence[Tensor | None], scales: Sequence[Tensor]) -> Tensor | None:
    """Parts one after the other; `value` where there is none. None: there is none at all."""
    like = next((each for each in parts if each is not None), None)
    if like is None:
        return None
    return torch.cat(
        [
            like.new_full((len(rows), like.shape[1]), value) if each is None else each
            for each, rows in zip(parts, scales, strict=True)
        ]
    )


class CodedWeight(Tensor):
    """A weight [out, in] as the codes of its checkpoint. Its type is that of activations.

    It has no values: what reads some finds NaN. Rows of it, `weight[rows]`, have their codes.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    codes: Codes

    @staticmethod
    def of(codes: Codes, dtype: torch.dtype) -> "CodedWeight":
        nothing = torch.tensor(torch.nan, dtype=dtype, device=codes.numbers.device)
        coded = nothing.expand(codes.numbers.shape).as_subclass(CodedWeight)
        coded.codes = codes
        return coded

    def __getitem__(self, rows: Any) -> Tensor:
        return CodedWeight.of(self.codes[rows], self.dtype)


def plain_of(weight: Tensor) -> Tensor:
    """The values of a weight, in its type, if it is a `CodedWeight`; else the weight."""
    return weight.codes.dequantized().to(weight.dtype) if isinstance(weight, CodedWeight) else weight
