"""The tensors of GGUF files under the names that checkpoints of safetensors give them.

Files are memory-mapped. A quantized tensor is rows of bytes, and its name ends with its type: see
`formats/gguf.py`. All experts of a layer are one tensor, which is taken apart.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.models.formats.gguf import SIZES
from gpu_worker.models.formats.gguf_blocks import dequantized
from gpu_worker.models.gguf_names import hugging_face_name
from ops.model_directory.files import FileError
from ops.model_directory.gguf.file import PLAIN, TensorPlace, read_gguf
from ops.model_directory.gguf.keys import FACTORS

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_OTHER_PARTS = ("v.", "mm.", "a.")
"""What names of encoders of images and sounds begin with, which files of Ollama have."""
_ROW = "mlp.shared_expert_gate.weight"
"""A matrix of one row, which llama.cpp has as a vector."""
_FILTERS = ("conv1d.weight", "conv.conv.weight")
"""Filters of channels, which llama.cpp has as a matrix, mostly."""
_RATE = ".A_log"
"""A logarithm, which llama.cpp has as the number, with a minus."""
_VECTORS = (_RATE, ".D", "mamba.norm.weight", "mixer.norm.weight")
"""Vectors, which llama.cpp has with more dimensions in some architectures."""
_NORM_OF_HEADS = "linear_attn.norm.weight"
"""A norm without 1 in models whose others have it."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """A tensor's shape, as a slice of safetensors has it."""

    shape: tuple[int, ...]

    def get_shape(self) -> tuple[int, ...]:
        return self.shape


class GgufTensors:
    """The tensors of all files of a model, read as those of an open safetensors file."""

    def __init__(self, path: Path) -> None:
        """Raises `ModelError`."""
        try:
            gguf = read_gguf(path)
            architecture = str(gguf.values.get("general.architecture"))
            self._maps = {
                each: torch.from_file(str(each), size=each.stat().st_size, dtype=torch.uint8)
                for each in gguf.paths
            }
        except (FileError, OSError, RuntimeError) as error:
            raise ModelError(str(error).partition("\n")[0]) from error
        self._one_more = architecture in ("gemma", "gemma2", "gemma3", "qwen35", "qwen35moe", "qwen3next")
        self.left = sum(own.startswith(_OTHER_PARTS) for own in gguf.tensors)
        """Number of tensors that are of other parts of the model."""
        self._places: dict[str, list[TensorPlace]] = {}
        for own, whole in sorted(gguf.tensors.items()):  # key is before value
            if own not in FACTORS and not own.startswith(_OTHER_PARTS):
                for name, place in _single(hugging_face_name(architecture, own), whole):
                    self._places.setdefault(name, []).append(place)
        for name, places in self._places.items():
            if len(places) > 1 and not _are_latent([place.shape for place in places]):
                raise ModelError(f"{path}: the parts of {name} do not fit each other")

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._places)

    @property
    def maps(self) -> list[range]:
        """Addresses of the files."""
        return [range(each.data_ptr(), each.data_ptr() + each.nbytes) for each in self._maps.values()]

    def get_slice(self, name: str) -> _Shape:
        first, *others = (place.shape for place in self._places[name])
        return _Shape((first[0] * (first[2] + others[0][1]), first[1]) if others else first)

    def get_tensor(self, name: str) -> Tensor:
        first, *others = self._places[name]
        if others:
            key, value = self._numbers(first), self._numbers(others[0])
            return torch.cat((key.transpose(1, 2), value), 1).flatten(0, 1)
        tensor = self._read(first)
        if name.endswith(_RATE):
            return tensor.neg().log()
        # llama.cpp keeps the factor of these norms whole, which is 1 + weight.
        whole = self._one_more and name.endswith("norm.weight") and not name.endswith(_NORM_OF_HEADS)
        return tensor - 1 if whole else tensor

    def _read(self, place: TensorPlace) -> Tensor:
        octets = self._maps[place.path][place.start : place.start + place.nbytes]
        if place.kind not in PLAIN:
            return octets.view(*place.shape[:-1], place.row_bytes)
        return octets.view(_DTYPES[place.kind]).view(place.shape)

    def _numbers(self, place: TensorPlace) -> Tensor:
        """A tensor as float32, dequantized if it is quantized."""
        stored = self._read(place)
        if place.kind in PLAIN:
            return stored.float()
        return dequantized(place.kind, stored.view(-1, SIZES[place.kind][1])).view(place.shape)


def _are_latent(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether they are parts of a projection of latent attention: [heads, row, key], [heads, value, row]."""
    if len(shapes) != 2 or any(len(shape) != 3 for shape in shapes):
        return False
    (heads, row, _), (others, _, columns) = shapes
    return heads == others and row == columns


def _single(name: str, place: TensorPlace) -> Iterator[tuple[str, TensorPlace]]:
    """A tensor under the name that says its type; of a tensor of all experts each expert's."""
    shape, experts = place.shape, "{}" in name
    if place.kind not in PLAIN and (experts or len(shape) < 3):
        name += f".{place.kind}"
    if not experts:
        if name.endswith(_ROW) and len(shape) == 1:
            place = replace(place, shape=(1, *shape))
        elif name.endswith(_FILTERS):
            place = replace(place, shape=(math.prod(shape[:-1]), 1, shape[-1]))
        elif name.endswith(_VECTORS):
            place = replace(place, shape=(math.prod(shape),), row_bytes=place.nbytes)
        yield name, place
        return
    size = place.nbytes // shape[0]
    for number in range(shape[0]):
        yield name.format(number), replace(place, shape=shape[1:], start=place.start + number * size)
