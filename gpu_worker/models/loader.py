"""Weights from safetensors files: memory-mapped, one tensor at a time, never a pickle."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.machine.huge_pages import forget
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.models.wrapped import language_tensors

log = logging.getLogger(__name__)

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"


class Checkpoint:
    """The tensors of a model directory by name."""

    def __init__(self, files: Mapping[str, tuple[Any, str]]) -> None:
        """`files`: for each tensor its open safetensors file, and its name in the file."""
        self._files = files
        self._read: set[str] = set()
        self.parameters = 0
        """Total number of elements of the tensors that `take` has returned."""

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor, memory-mapped. Raises `ModelError` if it is missing or has another shape."""
        if name not in self._files:
            raise ModelError(f"tensor {name} is missing from the checkpoint")
        file, own = self._files[name]
        found = tuple(file.get_slice(own).get_shape())
        if found != shape:
            raise ModelError(f"tensor {name} has shape {list(found)}, config.json means {list(shape)}")
        self._read.add(name)
        tensor: Tensor = file.get_tensor(own)
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            raise ModelError(f"tensor {name} is of type {str(tensor.dtype).removeprefix('torch.')}")
        self.parameters += tensor.numel()
        return tensor

    def whatever(self, name: str) -> Tensor:
        """A tensor of any shape and type."""
        file, own = self._files[name]
        tensor: Tensor = file.get_tensor(own)
        return tensor

    def names(self) -> Set[str]:
        """Names of all tensors."""
        return self._files.keys()

    def unread(self) -> list[str]:
        """Names of tensors that `take` has not returned, sorted."""
        return sorted(self._files.keys() - self._read)


@dataclass(frozen=True, slots=True)
class RankRows:
    """A part of a matrix whose rows are split among ranks."""

    rows: int
    """Number of rows of one rank."""
    copies: int = 1
    """Number of consecutive ranks that have the same rows."""


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

    def under(self, prefix: str) -> "Weights":
        """The tensors whose names begin with `prefix`, by the rest of their names."""
        return replace(self, prefix=self.prefix + prefix)

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

    def merged(self, parts: Mapping[str, int], columns: int, biased: bool) -> tuple[Tensor, Tensor | None]:
        """Weight [sum of rows, columns], and bias if `biased`, of several products merged into one.

        `parts`: number of rows of each product, by the name of its tensor. All ranks have all rows. Raises
        `ModelError`.
        """
        everywhere = self.ranks.count
        return self.split_outputs(
            {name: [RankRows(n, everywhere)] for name, n in parts.items()}, columns, biased
        )

    def split_outputs(
        self, parts: Mapping[str, Sequence[RankRows]], columns: int, biased: bool
    ) -> tuple[Tensor, Tensor | None]:
        """As `merged`, for products whose outputs are split among ranks: weight [sum of this rank's rows,
        columns].

        `parts`: for each tensor the parts that lie in it, one after the other, each of which is split.
        """
        cuts = {name: self._cut(each) for name, each in parts.items()}
        weight = self._merge([(f"{name}.weight", *cut) for name, cut in cuts.items()], (columns,))
        bias = [(f"{name}.bias", *cut) for name, cut in cuts.items()]
        return weight, self._merge(bias, ()) if biased else None

    def split_inputs(self, name: str, rows: int, columns: int, biased: bool) -> tuple[Tensor, Tensor | None]:
        """Weight [rows, this rank's columns], and bias, of a product whose inputs are split among ranks.

        Only rank 0 has the bias, so that the sum over ranks has it once.
        """
        first, whole = self.ranks.rank * columns, self.ranks.count * columns
        every = [slice(0, rows)]
        weight = self._merge([(f"{name}.weight", rows, every)], (whole,), slice(first, first + columns))
        bias = self._merge([(f"{name}.bias", rows, every)], ()) if biased else None
        return weight, bias if self.ranks.rank == 0 else None

    def _cut(self, parts: Sequence[RankRows]) -> tuple[int, list[slice]]:
        """Number of rows of a whole tensor, and slices of this rank's rows."""
        whole, mine = 0, []
        for part in parts:
            first = whole + self.ranks.rank // part.copies * part.rows
            mine.append(slice(first, first + part.rows))
            whole += part.rows * self.ranks.count // part.copies
        return whole, mine

    def _merge(
        self,
        parts: Sequence[tuple[str, int, Sequence[slice]]],
        rest: tuple[int, ...],
        columns: slice = slice(None),
    ) -> Tensor:
        """`parts`: name of each tensor [rows, *rest], its number of rows, and the slices of rows to take."""
        count = sum(rows.stop - rows.start for _, _, taken in parts for rows in taken)
        width = [len(range(size)[columns]) for size in rest]
        merged = torch.empty((count, *width), dtype=self.dtype, device=self.device)
        start = 0
        for name, whole, taken in parts:
            turned = self.transposed and len(rest) == 1
            tensor = self.checkpoint.take(self.prefix + name, (*rest, whole) if turned else (whole, *rest))
            for rows in taken:
                found = (tensor.T if turned else tensor)[rows]
                merged[start : start + len(found)].copy_(found[:, columns] if rest else found)
                start += len(found)
            forget(tensor)
        return merged


@contextmanager
def open_checkpoint(directory: Path) -> Iterator[Checkpoint]:
    """Open the safetensors of a directory: a single file, or shards and their index.

    Raises `ModelError` if there is no such file, if a file is truncated or no safetensors file, or if a file
    does not have the tensors that the index says.
    """
    with ExitStack() as opened:
        files: dict[str, Any] = {}
        for path, expected in shards(directory).items():
            try:
                file = opened.enter_context(safe_open(path, framework="pt", device="cpu"))
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{path}: not a whole safetensors file: {error}") from error
            names = set(file.keys())
            if missing := sorted((expected or set()) - names):
                raise ModelError(f"{path}: {_INDEX} says that it has tensor {missing[0]}, it has not")
            files |= dict.fromkeys(expected or names, file)
        language = language_tensors(files)
        if len(language) < len(files):
            log.info(
                "%s: text alone is served, %d other tensors are left", directory, len(files) - len(language)
            )
        yield Checkpoint({name: (files[own], own) for name, own in language.items()})


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises `ValueError` if a name comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} comes twice")
    return found


def shards(directory: Path) -> dict[Path, set[str] | None]:
    """Files of the checkpoint, and the tensors that each must have. None: any tensors."""
    index = directory / _INDEX
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text(encoding="utf-8"), object_pairs_hook=_once)["weight_map"]
            pairs = [(str(name), str(file)) for name, file in weight_map.items()]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index}: no weight_map in it: {error}") from error
        shards: dict[Path, set[str] | None] = {}
        for name, file in pairs:
            if Path(file).name != file:
                raise ModelError(f"{index}: shard {file!r} is not a file beside it")
            names = shards.setdefault(directory / file, set())
            assert names is not None
            names.add(name)
        for path in shards:
            if not path.is_file():
                raise ModelError(f"{path} is missing, {_INDEX} names it")
        return shards
    if (directory / _SINGLE).is_file():
        return {directory / _SINGLE: None}
    pickles = [
        path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in sorted(directory.glob(pattern))
    ]
    if pickles:
        raise ModelError(
            f"{directory}: weights only as pickles ({pickles[0]}), which are never loaded: convert it"
        )
    raise ModelError(f"{directory} has no {_SINGLE}")
