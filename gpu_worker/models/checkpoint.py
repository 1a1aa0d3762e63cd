"""The tensors of safetensors or GGUF files: memory-mapped, one at a time, never a pickle."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.codes import Codes
from gpu_worker.machine.huge_pages import forget
from gpu_worker.models.formats.format import IN_MLX_FORM, Format
from gpu_worker.models.formats.stored import PIECE, QuantizedWeight
from gpu_worker.models.gguf_tensors import GgufTensors
from gpu_worker.models.stacked import single_experts
from gpu_worker.models.wrapped import language_tensors
from ops.model_directory.files import FileError, not_there
from ops.model_directory.weight_files import INDEX, SINGLE, gguf_files, only_pickles, weight_map

_WEIGHT = "weight"
NO_ALIASES: Mapping[str, str] = {}

Part = Callable[[Iterable[str]], Mapping[str, str]]
"""From the names of all tensors to those of a part: by the names that the part has on its own."""


class Checkpoint:
    """The tensors of a model directory by name."""

    def __init__(
        self,
        files: Mapping[str, tuple[Any, str]],
        form: Format | None = None,
        maps: Sequence[range] = (),
    ) -> None:
        """`files`: for each tensor its open safetensors file, and its name in the file. `form`: how weights
        are quantized; None: they are not. `maps`: addresses of the files."""
        self._files, self._form, self._maps = files, form, maps
        self._read: set[str] = set()
        self.left = 0
        """Number of tensors of the directory that are of other parts of the model."""
        self.of_mlx = False
        """MLX has written the files. Norms, filters and experts of some families have another form there."""
        self.parameters = 0
        """Total number of elements of the tensors and weights that `take` and `take_stored` have returned."""
        self.stored_bytes = 0
        """Bytes of the tensors of quantized weights, whole."""
        self.dequantized = 0
        """Number of quantized weights that were read, of this rank alone."""
        self.kept = 0
        """Number of these that keep their bits, as `ScaledWeight`, `ByteWeight` or `CodedWeight`."""

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise `ModelError` if a tensor is missing or has another shape. It may be a quantized weight."""
        if (found := self.shape(name)) != shape:
            raise ModelError(f"tensor {name} has shape {list(found)}, config.json means {list(shape)}")

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, or of a quantized weight. Raises `ModelError` if it is missing."""
        if (stored := self._stored(name)) is not None:
            return stored[0].shape
        if name not in self._files:
            raise ModelError(f"tensor {name} is missing from the checkpoint")
        file, own = self._files[name]
        return tuple(file.get_slice(own).get_shape())

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor, memory-mapped. Raises `ModelError` if it is missing or has another shape."""
        self.check(name, shape)
        file, own = self._files[name]
        self._read.add(name)
        tensor: Tensor = file.get_tensor(own)
        if not tensor.dtype.is_floating_point or tensor.dtype.itemsize < 2:
            raise ModelError(f"tensor {name} is of type {str(tensor.dtype).removeprefix('torch.')}")
        self.parameters += tensor.numel()
        return tensor

    def take_stored(self, name: str) -> tuple[QuantizedWeight, Sequence[Tensor]] | None:
        """A quantized weight, and the memory-mapped tensors that it reads. None: `name` is not quantized.

        Raises `ModelError` if tensors of it are missing or do not fit each other.
        """
        if (stored := self._stored(name)) is None:
            return None
        weight, tensors = stored
        stem = name.removesuffix(_WEIGHT)
        self._read.update(stem + end for end in tensors)
        self.parameters += weight.shape[0] * weight.shape[1]
        self.stored_bytes += sum(tensor.nbytes for tensor in tensors.values())
        return weight, list(tensors.values())

    def int4_scales(
        self, name: str, rows: Sequence[slice], columns: slice
    ) -> tuple[Tensor, Tensor, int] | None:
        """`QuantizedWeight.int4_scales` of slices of rows, one after the other, and the inputs of a shift.

        None if it is None for any.
        """
        if (stored := self._stored(name)) is None:
            return None
        found = [part for each in rows if (part := stored[0].int4_scales(each, columns)) is not None]
        self.forget(stored[1].values())
        if len(found) < len(rows):
            return None
        scales, shifts = (torch.cat(each) for each in zip(*found, strict=True))
        return scales, shifts, stored[0].shift_size

    def fp4_scales(self, name: str, rows: Sequence[slice], columns: slice) -> Tensor | None:
        """`QuantizedWeight.fp4_scales` of slices of rows, one after the other. None if it is None for any."""
        if (stored := self._stored(name)) is None:
            return None
        found = [part for each in rows if (part := stored[0].fp4_scales(each, columns)) is not None]
        self.forget(stored[1].values())
        return torch.cat(found) if len(found) == len(rows) else None

    def has_fp8_groups(self, name: str) -> bool:
        """`QuantizedWeight.has_fp8_groups` of a weight."""
        return (stored := self._stored(name)) is not None and stored[0].has_fp8_groups

    def byte_scales(self, name: str, rows: Sequence[slice]) -> tuple[Tensor, torch.dtype] | None:
        """`QuantizedWeight.byte_scales` of slices of rows, one after the other. None if it is None."""
        if (stored := self._stored(name)) is None:
            return None
        found = [part for each in rows if (part := stored[0].byte_scales(each)) is not None]
        self.forget(stored[1].values())
        return (torch.cat([scales for scales, _ in found]), found[0][1]) if found else None

    def codes(self, name: str, rows: Sequence[slice], columns: slice) -> Iterator[Codes | None]:
        """`QuantizedWeight.codes` of slices of rows, in pieces. None: the weight has none.

        A piece may be memory-mapped, and must be copied before the next one is asked for.
        """
        if (stored := self._stored(name)) is None:
            yield None
            return
        step = max(1, PIECE // max(columns.stop - columns.start, 1))
        for each in rows:
            for first in range(each.start, each.stop, step):
                yield stored[0].codes(slice(first, min(first + step, each.stop)), columns)
        self.forget(stored[1].values())

    def _stored(self, name: str) -> tuple[QuantizedWeight, dict[str, Tensor]] | None:
        """The quantized weight `name`, and its tensors by the ends of their names."""
        if self._form is None or not name.endswith(f".{_WEIGHT}"):
            return None
        stem = name.removesuffix(_WEIGHT)
        tensors = {end: self.whatever(stem + end) for end in self._form.ends if stem + end in self._files}
        try:
            weight = self._form.weight(stem, tensors)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            line = str(error).partition("\n")[0]
            raise ModelError(f"tensor {name}: its {self._form.name} is not understood: {line}") from error
        return None if weight is None else (weight, tensors)

    def widened(self) -> tuple[int, int]:
        """Number of all quantized weights, and bytes of the tensors that store them. Raises `ModelError`."""
        ends = () if self._form is None else self._form.ends
        stems = {name.removesuffix(end) for name in self._files for end in ends if name.endswith(f".{end}")}
        every = [each for stem in stems if (each := self._stored(stem + _WEIGHT)) is not None]
        numbers = sum(weight.shape[0] * weight.shape[1] for weight, _ in every)
        return numbers, sum(tensor.nbytes for _, tensors in every for tensor in tensors.values())

    def equal(self, first: str, second: str) -> bool:
        """Whether two matrices have the same numbers. Neither may be a quantized weight."""
        one, other = self.whatever(first), self.whatever(second)
        if one.dim() != 2 or one.shape != other.shape:
            return False
        step = max(1, PIECE // max(one.shape[-1], 1))
        for begin in range(0, len(one), step):
            pieces = one[begin : begin + step], other[begin : begin + step]
            same = pieces[0].float().equal(pieces[1].float())
            self.forget(pieces)  # at once: a small model is little more than its embedding
            if not same:
                return False
        return True

    def is_quantized(self, name: str) -> bool:
        """Whether a tensor is a quantized weight."""
        return self._stored(name) is not None

    @property
    def quantized(self) -> bool:
        """Whether weights may be quantized."""
        return self._form is not None

    def weights(self) -> Set[str]:
        """Names of all tensors, where the tensors of a quantized weight have its one name."""
        ends = () if self._form is None else self._form.ends
        stems = {name.removesuffix(end) for name in self._files for end in ends if name.endswith(f".{end}")}
        quantized = set[str]()
        for stem in stems:
            if (stored := self._stored(stem + _WEIGHT)) is not None:
                quantized.add(stem)
                self.forget(stored[1].values())
        parts = {stem + end for stem in quantized for end in ends}
        return (self._files.keys() - parts) | {stem + _WEIGHT for stem in quantized}

    def dense(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor of any shape. If it is quantized, it is dequantized to `dtype`. It does not count as read.

        `name`: of `weights`.
        """
        if (stored := self._stored(name)) is None:
            return self.whatever(name)
        weight = stored[0]
        rows, columns = weight.shape
        found = torch.empty(rows, columns, dtype=dtype)
        step = max(1, PIECE // max(columns, 1))
        for first in range(0, rows, step):
            taken = slice(first, min(first + step, rows))
            found[taken] = weight.part(taken, slice(0, columns), found.device)
        self.forget(stored[1].values())
        return found

    def dtype(self) -> torch.dtype:
        """Type of the first weight or bias that has one of a model's types; else float32.

        Scales are neither, and may have another type.
        """
        names = sorted(name for name in self._files if name.endswith((".weight", ".bias")))
        types = (self.whatever(name).dtype for name in names)
        return next((kind for kind in types if kind.is_floating_point and kind.itemsize > 1), torch.float32)

    def unaccounted(self, names: Iterable[str], ignored: tuple[str, ...]) -> list[str]:
        """Those of `names` that mean something, though nothing has read them. `ignored`: ends of names."""
        unknown = [name for name in names if not name.endswith(ignored)]
        if self._form is None:
            return unknown
        # AutoGPTQ writes biases of zero where a model has none.
        return [name for name in unknown if not name.endswith(".bias") or self.whatever(name).any()]

    def kept_share(self, dtype: torch.dtype) -> str:
        """For the log: how much of the quantized weights stays as it is. `dtype`: of the others."""
        return (
            f"{self._form.name if self._form else 'plain'}: {self.stored_bytes / 2**20:.1f} MiB of quantized "
            f"weights are {self.dequantized * dtype.itemsize / 2**20:.1f} MiB in "
            f"{str(dtype).removeprefix('torch.')}, before the back end lays them out; "
            f"{100 * self.kept / max(1, self.dequantized):.0f} % stay as they are, "
            "the others are dequantized"
        )

    def forget(self, tensors: Iterable[Tensor]) -> None:
        """Release the memory of tensors that have been read."""
        for tensor in tensors:
            forget(tensor, self._maps)

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


@contextmanager
def open_checkpoint(
    directory: Path,
    form: Format | None = None,
    stacked: bool = False,
    aliases: Mapping[str, str] = NO_ALIASES,
    part: Part = language_tensors,
) -> Iterator[Checkpoint]:
    """Open the safetensors of a directory: a single file, or shards and their index; or its GGUF files.

    `form`: how weights are quantized. `stacked`: tensors that have all experts of a layer are taken expert by
    expert, even if they are not quantized. `aliases`: as in `Family`. `part`: which of the tensors are meant.

    Raises `ModelError` if there is no such file, if a file is truncated or of another kind, or if a file does
    not have the tensors that the index says.
    """
    if linked := _gguf_files(directory):
        gguf = GgufTensors(linked[0])
        checkpoint = Checkpoint({name: (gguf, name) for name in gguf.names}, form, gguf.maps)
        checkpoint.left = gguf.left
        yield checkpoint
        return
    with ExitStack() as opened:
        files: dict[str, Any] = {}
        maps, by_mlx = list[range](), False
        for path, expected in shards(directory).items():
            try:
                file = opened.enter_context(safe_open(path, framework="pt", device="cpu"))
            except (SafetensorError, OSError) as error:
                why = not_there(path) or f"not a whole safetensors file: {error}"
                raise ModelError(f"{path}: {why}") from error
            names = set(file.keys())
            if missing := sorted(expected - names):
                raise ModelError(f"{path}: {INDEX} says that it has tensor {missing[0]}, it has not")
            files |= dict.fromkeys(expected or names, file)
            maps += _map(file)
            by_mlx |= of_mlx(file)
        found = {usual_name(name, aliases): (files[own], own) for name, own in part(files).items()}
        checkpoint = Checkpoint(single_experts(found, plain=stacked), form, maps)
        checkpoint.left = len(files) - len(found)
        checkpoint.of_mlx = by_mlx
        try:
            yield checkpoint
        except ModelError as error:
            if not checkpoint.of_mlx or IN_MLX_FORM in str(error):
                raise
            raise ModelError(f"{error} ({IN_MLX_FORM})") from error


def of_mlx(file: Any) -> bool:
    """Whether MLX has written an open safetensors file."""
    return bool((file.metadata() or {}).get("format") == "mlx")


def is_gguf(directory: Path) -> bool:
    """Whether the weights of a directory are in GGUF files. Raises `ModelError`."""
    return bool(_gguf_files(directory))


def _gguf_files(directory: Path) -> list[Path]:
    try:
        return gguf_files(directory)
    except FileError as error:
        raise ModelError(str(error)) from error


def usual_name(name: str, aliases: Mapping[str, str]) -> str:
    """The name of a tensor, with `aliases` replaced."""
    for alias, usual in aliases.items():
        name = name.replace(alias, usual)
    return name


def _map(file: Any) -> list[range]:
    """Addresses of the tensors of an open safetensors file, which lie one after the other. Empty if it has no
    numbers."""
    names = file.offset_keys()
    ends = [
        next((found for name in order if (found := file.get_tensor(name)).numel()), None)
        for order in (names, names[::-1])
    ]
    if (first := ends[0]) is None or (last := ends[1]) is None:
        return []
    return [range(first.data_ptr(), last.data_ptr() + last.nbytes)]


def shards(directory: Path) -> Mapping[Path, Set[str]]:
    """Files of the checkpoint, and the tensors that each must have; empty: any. Raises `ModelError`."""
    try:
        named = weight_map(directory)
    except FileError as error:
        raise ModelError(str(error)) from error
    if named is not None:
        shards: dict[Path, set[str]] = {}
        for name, file in named.items():
            shards.setdefault(directory / file, set()).add(name)
        for path in shards:
            if not path.is_file():
                raise ModelError(f"{path} is missing, {INDEX} names it")
        return shards
    if (directory / SINGLE).is_file():
        return {directory / SINGLE: set()}
    if wrong := only_pickles(directory):
        raise ModelError(f"{directory}: {wrong}")
    raise ModelError(f"{directory} has no {SINGLE}")
