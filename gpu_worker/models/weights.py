"""The tensors of a checkpoint as decoders ask for them: converted, merged, and this rank's part alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.codes import CodedWeight, Codes, gathered
from gpu_worker.kernels.products import GROUP, ByteWeight, ScaledWeight
from gpu_worker.kernels.reference.kept import BYTES, Kind
from gpu_worker.models.checkpoint import Checkpoint
from gpu_worker.models.formats.stored import DEVICE_PIECE, PIECE
from gpu_worker.models.ranks import ALONE, Ranks

T = TypeVar("T")
Kept = TypeVar("Kept", ByteWeight, ScaledWeight, CodedWeight)


@dataclass(frozen=True, slots=True)
class Share:
    """This rank's rows of a part of a matrix, or columns."""

    own: slice
    """Which of them."""
    whole: int
    """Number of all."""

    def times(self, number: int) -> "Share":
        """The same of `number` rows in the place of each."""
        return Share(slice(number * self.own.start, number * self.own.stop), number * self.whole)


@dataclass(frozen=True, slots=True)
class RankRows:
    """A part of a matrix whose rows are split among ranks evenly."""

    rows: int
    """Number of rows of one rank."""
    copies: int = 1
    """Number of consecutive ranks that have the same rows."""

    def share(self, ranks: Ranks) -> Share:
        first = ranks.rank // self.copies * self.rows
        return Share(slice(first, first + self.rows), self.rows * ranks.count // self.copies)


def in_tensors(names: Sequence[str], parts: Sequence[T]) -> dict[str, Sequence[T]]:
    """Parts of a joint matrix by tensor: each part in a tensor of its own, or all in one tensor."""
    if len(names) == 1:
        return {names[0]: parts}
    return {name: [part] for name, part in zip(names, parts, strict=True)}


@dataclass(frozen=True, slots=True)
class Weights:
    """A checkpoint's tensors as a decoder asks for them: converted, on the device, merged.

    A tensor is read when it is asked for, so that memory holds at most one tensor besides the weights that
    the back end has laid out. Of a matrix that is split among ranks only this rank's part is read.
    """

    checkpoint: Checkpoint
    dtype: torch.dtype
    device: torch.device
    prefix: str = ""
    transposed: bool = False
    """The checkpoint has matrices as [columns, rows]."""
    ranks: Ranks = ALONE
    keeps: frozenset[Kind] = frozenset()
    """Types of weights that the back end can keep: see `ScaledWeight`, `ByteWeight` and `CodedWeight`."""
    multipliers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Factors of matrices by the name of the product: one for each part that lies in the tensor. Such
    matrices are not kept as they are."""

    def under(self, prefix: str) -> "Weights":
        """The tensors whose names begin with `prefix`, by the rest of their names."""
        within = {
            name.removeprefix(prefix): factors
            for name, factors in self.multipliers.items()
            if name.startswith(prefix)
        }
        return replace(self, prefix=self.prefix + prefix, multipliers=within)

    def of(self, dtype: torch.dtype) -> "Weights":
        """The same tensors, converted to another type."""
        return replace(self, dtype=dtype)

    def has(self, name: str) -> bool:
        """Whether there is a tensor `name`."""
        return self.prefix + name in self.checkpoint.names()

    def has_any(self, prefix: str) -> bool:
        """Whether the name of any tensor begins with `prefix`."""
        return any(name.startswith(self.prefix + prefix) for name in self.checkpoint.names())

    def read(self, name: str, *shape: int) -> Tensor:
        """One tensor. Raises `ModelError` if it is missing or has another shape."""
        return self.rows(name, slice(0, shape[0]), *shape)

    def rows(self, name: str, rows: slice, *shape: int) -> Tensor:
        """Rows `rows` of a tensor of shape `shape`. Raises `ModelError`."""
        return self._merge([(name, shape[0], [rows])], shape[1:])

    def flat(self, name: str, rows: slice, count: int) -> Tensor:
        """Numbers `rows` of a tensor of any shape, `count` in all. Raises `ModelError`."""
        shape = self.checkpoint.shape(self.prefix + name)
        whole = self.read(name, *(shape if prod(shape) == count else (count,)))
        return whole.flatten()[rows]

    def joined(self, names: Sequence[str], *shape: int) -> Tensor:
        """A tensor that lies in several, one after the other. Each may have any number of rows: transformers
        writes three parts of one size where published files have queries, keys and values.

        Raises `ModelError` if one is missing, or if all together have another shape.
        """
        parts = [(name, self.checkpoint.shape(self.prefix + name)[0]) for name in names]
        if (rows := sum(count for _, count in parts)) != shape[0]:
            every = ", ".join(self.prefix + name for name in names)
            raise ModelError(f"tensor {every}: {rows} rows, config.json means {shape[0]}")
        return self._merge([(name, count, [slice(0, count)]) for name, count in parts], shape[1:])

    def merged(self, parts: Mapping[str, int], columns: int, biased: bool) -> tuple[Tensor, Tensor | None]:
        """Weight [sum of rows, columns], and bias if `biased`, of several products merged into one.

        `parts`: number of rows of each product, by the name of its tensor. All ranks have all rows. Raises
        `ModelError`.
        """
        everywhere = self.ranks.count
        return self.split_outputs(
            {name: [RankRows(n, everywhere)] for name, n in parts.items()}, columns, biased
        )

    def share(self, size: int) -> Share:
        """This rank's part of `size` dimensions, which the ranks divide. Where weights are kept, it is whole
        groups of weights that share a scale, of which ranks may have different numbers."""
        count = self.ranks.count
        unit = GROUP if self.keeps and size % GROUP == 0 and size >= count * GROUP else 1
        begin, end = (size // unit * rank // count * unit for rank in (self.ranks.rank, self.ranks.rank + 1))
        return Share(slice(begin, end), size)

    def split_outputs(
        self, parts: Mapping[str, Sequence[RankRows | Share]], columns: int, biased: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As `merged`, for products whose outputs are split among ranks: weight [sum of this rank's rows,
        columns].

        `parts`: for each tensor the parts that lie in it, one after the other, each of which is split.
        """
        cuts = {name: self._cut(each) for name, each in parts.items()}
        weight = self._merge([(f"{name}.weight", *cut) for name, cut in cuts.items()], (columns,))
        bias = [(f"{name}.bias", *cut) for name, cut in cuts.items()]
        return weight, self._merge(bias, ()) if biased else None

    def split_inputs(
        self, name: str, rows: int, columns: int | Share, biased: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Weight [rows, this rank's columns], and bias, of a product whose inputs are split among ranks.

        `columns`: number of one rank's, if all have as many. Only rank 0 has the bias, so that the sum over
        ranks has it once.
        """
        share = columns if isinstance(columns, Share) else RankRows(columns).share(self.ranks)
        every = [slice(0, rows)]
        weight = self._merge([(f"{name}.weight", rows, every)], (share.whole,), share.own)
        bias = self._merge([(f"{name}.bias", rows, every)], ()) if biased else None
        return weight, bias if self.ranks.rank == 0 else None

    def _cut(self, parts: Sequence[RankRows | Share]) -> tuple[int, list[slice]]:
        """Number of rows of a whole tensor, and slices of this rank's rows."""
        whole, mine = 0, []
        for part in parts:
            share = part if isinstance(part, Share) else part.share(self.ranks)
            mine.append(slice(whole + share.own.start, whole + share.own.stop))
            whole += share.whole
        return whole, mine

    def _merge(
        self,
        parts: Sequence[tuple[str, int, Sequence[slice]]],
        rest: tuple[int, ...],
        columns: slice = slice(None),
    ) -> Tensor:
        """`parts`: name of each tensor [rows, *rest], its number of rows, and the slices of rows to take."""
        turned = self.transposed and len(rest) == 1
        shapes = [(*rest, whole) if turned else (whole, *rest) for _, whole, _ in parts]
        for (name, _, _), shape in zip(parts, shapes, strict=True):
            self.checkpoint.check(self.prefix + name, shape)  # before there is memory for what is not there
        count = sum(rows.stop - rows.start for _, _, taken in parts for rows in taken)
        size = (count, *(len(range(each)[columns]) for each in rest))
        values = partial(self._values, parts, shapes, turned, columns, size)
        if not self.keeps or not rest or any(self._factors(name) for name, _, _ in parts):
            return values()
        bytes_of = [self.checkpoint.byte_scales(self.prefix + name, taken) for name, _, taken in parts]
        known = [each for each in bytes_of if each is not None]
        kinds = {kind for _, kind in known}
        if len(known) == len(bytes_of) and len(kinds) == 1 and BYTES[kind := kinds.pop()] in self.keeps:
            return self._counted(
                ByteWeight.of(values(), torch.cat([each for each, _ in known]).to(self.device), kind)
            )
        across = slice(columns.start or 0, (columns.start or 0) + size[1])
        if "int4" in self.keeps and (groups := self._groups(parts, across)) is not None:
            return self._counted(ScaledWeight.of(values(), *groups))
        if "fp4" in self.keeps and (scales := self._fp4_scales(parts, across)) is not None:
            return self._counted(ScaledWeight.of(values(), scales, kind="fp4"))
        coded = "coded" in self.keeps or (
            "fp8 groups" in self.keeps
            and across.start % GROUP == 0
            and all(self.checkpoint.has_fp8_groups(self.prefix + name) for name, _, _ in parts)
        )
        if coded and (codes := self._codes(parts, across)) is not None:
            return self._counted(CodedWeight.of(codes, self.dtype))
        return values()

    def _values(
        self,
        parts: Sequence[tuple[str, int, Sequence[slice]]],
        shapes: Sequence[tuple[int, ...]],
        turned: bool,
        columns: slice,
        size: tuple[int, ...],
    ) -> Tensor:
        """The numbers of `_merge`, of shape `size`."""
        merged = torch.empty(size, dtype=self.dtype, device=self.device)
        start = 0
        for (name, _, taken), shape in zip(parts, shapes, strict=True):
            for found in self._found(name, shape, taken, turned, columns):
                merged[start : start + len(found)].copy_(found)
                start += len(found)
        end = 0
        for name, _, taken in parts:
            for rows, factor in zip(taken, self._factors(name) or (1.0,) * len(taken), strict=True):
                begin, end = end, end + rows.stop - rows.start
                if factor != 1.0:
                    merged[begin:end] *= factor
        return merged

    def _factors(self, name: str) -> tuple[float, ...]:
        """Factors of the parts of tensor `name`. Empty: they have none."""
        return self.multipliers.get(name.removesuffix(".weight"), ())

    def _counted(self, weight: Kept) -> Kept:
        self.checkpoint.kept += weight.numel()
        return weight

    def _codes(self, parts: Sequence[tuple[str, int, Sequence[slice]]], columns: slice) -> Codes | None:
        """The codes of `parts`, if all of them have such that go together."""
        pieces = (self.checkpoint.codes(self.prefix + name, taken, columns) for name, _, taken in parts)
        count = sum(rows.stop - rows.start for _, _, taken in parts for rows in taken)
        if (whole := gathered(chain.from_iterable(pieces), count)) is None:
            return None
        for name, _, _ in parts:
            if (stored := self.checkpoint.take_stored(self.prefix + name)) is not None:
                self.checkpoint.forget(stored[1])
        self.checkpoint.dequantized += whole.numbers.numel()
        return whole.to(self.device)

    def _fp4_scales(self, parts: Sequence[tuple[str, int, Sequence[slice]]], columns: slice) -> Tensor | None:
        """Scales of the groups of `parts`. None: not all have such."""
        every = [self.checkpoint.fp4_scales(self.prefix + name, taken, columns) for name, _, taken in parts]
        found = [each for each in every if each is not None]
        return torch.cat(found).to(self.device) if len(found) == len(every) else None

    def _groups(
        self, parts: Sequence[tuple[str, int, Sequence[slice]]], columns: slice
    ) -> tuple[Tensor, Tensor | None, int] | None:
        """Scales and shifts of the groups of `parts`, and the inputs of a shift. None: not all have such."""
        every = [self.checkpoint.int4_scales(self.prefix + name, taken, columns) for name, _, taken in parts]
        found = [each for each in every if each is not None]
        if len(found) < len(every) or len({(shifts.shape[1], size) for _, shifts, size in found}) > 1:
            return None
        scales = torch.cat([each for each, _, _ in found]).to(self.device)
        shifts = torch.cat([each for _, each, _ in found]).to(self.device)
        size = min(found[0][2], columns.stop - columns.start)
        return scales, shifts if shifts.shape[1] else None, size

    def _found(
        self, name: str, shape: tuple[int, ...], taken: Sequence[slice], turned: bool, columns: slice
    ) -> Iterator[Tensor]:
        """The slices `taken` of rows of a tensor, one after the other. Quantized ones come in pieces."""
        stored = self.checkpoint.take_stored(self.prefix + name)
        if stored is None:
            tensor = self.checkpoint.take(self.prefix + name, shape)
            for rows in taken:
                found = (tensor.T if turned else tensor)[rows]
                yield found[:, columns] if len(shape) > 1 else found
            self.checkpoint.forget([tensor])
            return
        weight, tensors = stored
        across = range(shape[1])[columns]
        columns = slice(across.start, across.stop)
        piece = PIECE if self.device.type == "cpu" else DEVICE_PIECE
        step = max(1, piece // max(len(across), 1))
        for rows in taken:
            for first in range(rows.start, rows.stop, step):
                part = weight.part(slice(first, min(first + step, rows.stop)), columns, self.device)
                self.checkpoint.dequantized += part.numel()
                yield part
        self.checkpoint.forget(tensors)
