"""What a model takes of memory, read from its config.json and the headers of its weights."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelError
from gpu_worker.kernels.kv_sizes import PageShape, StateShape, token_bytes, usual_block_size
from gpu_worker.models.families import family_of
from gpu_worker.models.index_config import read_index
from gpu_worker.models.recurrent_config import RecurrentConfig, read_recurrent
from gpu_worker.models.values import Values
from gpu_worker.models.wrapped import language_part
from ops.model_directory import files
from ops.model_directory.encoder import encoder_family
from ops.model_directory.gguf.file import read_gguf
from ops.model_directory.weight_files import gguf_files, named_files

_MAX_HEADER = 100 * 2**20  # the safetensors format allows no longer one
_BITS = {"BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}  # of others the name ends with the bits


class ModelFilesError(Exception):
    """A model's files are missing, or do not say what is needed. The message is one line."""


@dataclass(frozen=True)
class KvShape:
    """What one token leaves in the cache of all layers.

    `kind` is MHA, GQA, MQA or MLA, or none if no layer has attention. MLA (DeepSeek-V2, section 2.1) keeps
    one compressed vector and one rotated key for all heads, as one row.
    """

    kind: str
    layers: int
    pages: tuple[PageShape, ...]
    """Of each layer, but for those that attend to the keys of an earlier layer. Then of index keys."""
    window: int | None
    states: tuple[StateShape, ...] = ()
    """Of each recurrent layer: what it keeps in a block."""

    @property
    def state_bytes(self) -> int:
        """Bytes of a block's states in all layers."""
        return sum(each.block_bytes for each in self.states)

    def usual_block_size(self, dtype: str) -> int:
        """Tokens of a block where no setting says how many."""
        return usual_block_size(self.token_bytes(dtype), self.state_bytes)

    def token_bytes(self, dtype: str) -> int:
        """Bytes that one token takes in all layers; `dtype` as in `kv_sizes.token_bytes`."""
        return sum(token_bytes(each, dtype) for each in self.pages)


@dataclass(frozen=True)
class MemoryPlan:
    """How `memory` bytes divide into weights and blocks; `requests` of `context` tokens fit."""

    weights: int
    block_bytes: int
    blocks: int
    requests: int


def read_config(model: Path) -> dict[str, Any]:
    """The language model's part of config.json, by usual names. Raises ModelFilesError."""
    path = model / "config.json"
    try:
        config = files.read_config(path)
    except files.FileError as error:
        raise ModelFilesError(str(error)) from error
    if encoder_family(config):
        raise ModelFilesError(f"{path}: an encoder keeps no keys and values: only its weights take memory")
    whole = language_part(config)
    inner = whole.get("text_config", whole)
    if not isinstance(inner, dict):
        raise ModelFilesError(f"{path} holds no object of settings")
    architectures = whole.get("architectures")
    name = str(architectures[0]) if isinstance(architectures, list) and architectures else ""
    family = family_of(name, inner)
    return family.canonical(inner) if family else inner


def kv_shape(config: Mapping[str, Any]) -> KvShape:
    """What config.json says of the cache. Raises ModelFilesError if a size is missing or odd."""
    layers = _size(config, "num_hidden_layers")
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    recurrent = _recurrent(config, layers)
    states = (recurrent.state,) * len(recurrent.layers) if recurrent else ()
    attentions = layers - len(recurrent.without_attention if recurrent else ())
    if config.get("kv_lora_rank") is not None:
        rank = _size(config, "kv_lora_rank")
        row = rank + _size(config, "qk_rope_head_dim")
        pages = (PageShape(1, row, rank, shared=True),) * attentions
        return KvShape("MLA", layers, pages + _index_pages(config, layers), window, states)
    heads = _size(config, "num_attention_heads")
    many = config.get("num_key_value_heads") is not None
    kv_heads = _size(config, "num_key_value_heads") if many else heads
    given = config.get("head_dim") is not None
    head_dim = _size(config, "head_dim") if given else _size(config, "hidden_size") // heads
    kind = "MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else "GQA"
    pages = _pages(config, layers, kv_heads, head_dim)[: attentions if recurrent else None]
    return KvShape(kind if attentions else "none", layers, pages, window, states)


def _index_pages(config: Mapping[str, Any], layers: int) -> tuple[PageShape, ...]:
    """Pages of index keys, as indexers of sparse attention have them."""
    if config.get("index_topk") is None:
        return ()
    try:
        index = read_index(Values(Path("config.json"), config), layers)
    except ModelError as error:
        raise ModelFilesError(str(error)) from error
    return (PageShape(1, index.head_dim, index.head_dim, shared=True),) * len(index.layers)


def _recurrent(config: Mapping[str, Any], layers: int) -> RecurrentConfig | None:
    """Recurrent layers. None: there are none."""
    architectures = config.get("architectures") or [""]
    family = family_of(str(architectures[0]), config)
    try:
        return read_recurrent(
            family.recurrent if family else None, Values(Path("config.json"), config), layers
        )
    except ModelError as error:
        raise ModelFilesError(str(error)) from error


def _pages(config: Mapping[str, Any], layers: int, kv_heads: int, head_dim: int) -> tuple[PageShape, ...]:
    """In Gemma 4 layers with full attention have their own sizes. In Gemma 3n and 4 the last layers have no
    pages: they attend to the keys of earlier ones."""
    usual = {"num_key_value_heads": kv_heads, "head_dim": head_dim}
    full = {}
    if config.get("global_head_dim") is not None:
        full["head_dim"] = _size(config, "global_head_dim")
        if config.get("attention_k_eq_v") and config.get("num_global_key_value_heads") is not None:
            full["num_key_value_heads"] = _size(config, "num_global_key_value_heads")
    kinds = config.get("layer_types") if full else [""] * layers
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ModelFilesError(f"config.json: layer_types must be a list of {layers}, not {kinds!r}")
    own = layers - (_size(config, "num_kv_shared_layers") if config.get("num_kv_shared_layers") else 0)
    by_layer = config.get("per_layer_config") or {}  # as newer versions of transformers write it
    pages = []
    for layer, kind in enumerate(kinds[:own]):
        sizes = usual | (full if kind == "full_attention" else {}) | by_layer.get(str(layer), {})
        size = _size(sizes, "head_dim")
        pages.append(PageShape(_size(sizes, "num_key_value_heads"), size, size))
    return tuple(pages)


def weights_bytes(model: Path) -> int:
    """Bytes of all tensors as stored, from the files' headers alone. Raises ModelFilesError."""
    try:
        weights = [model / name for name in named_files(model)]
    except files.FileError as error:
        raise ModelFilesError(str(error)) from error
    if not any(path.is_file() for path in weights):
        try:
            if not (gguf := gguf_files(model)):
                raise ModelFilesError(f"no {weights[0].name} in {model}")
            return sum(place.nbytes for place in read_gguf(gguf[0]).tensors.values())
        except files.FileError as error:
            raise ModelFilesError(str(error)) from error
    return sum(_tensors_bytes(file) for file in weights)


def loaded_bytes(model: Path) -> int:
    """Bytes of all tensors, quantized weights in bfloat16, as which a worker loads them by default on a GPU.

    Weights in a format that Quire does not read count as stored. Raises ModelFilesError.
    """
    stored, config = weights_bytes(model), read_config(model)
    if config.get("quantization_config") is None and not (model / files.MODELOPT).is_file():
        return stored
    from gpu_worker.errors import ModelError  # with PyTorch, for which other models need not wait
    from gpu_worker.models.checkpoint import open_checkpoint
    from gpu_worker.models.formats import read_format
    from gpu_worker.models.values import Values

    try:
        form = read_format(Values(model / "config.json", config))
        with open_checkpoint(model, form) as checkpoint:
            numbers, packed = checkpoint.widened()
    except ModelError:
        return stored
    return stored - packed + 2 * numbers


def plan(shape: KvShape, weights: int, memory: int, block_size: int, dtype: str, context: int) -> MemoryPlan:
    """Divide `memory` bytes. What a step needs besides is not counted; the worker measures it."""
    block_bytes = shape.token_bytes(dtype) * block_size + shape.state_bytes
    blocks = max(0, memory - weights) // block_bytes
    return MemoryPlan(weights, block_bytes, blocks, blocks // -(-context // block_size))


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelFilesError(f"config.json: {key} must be a whole number of at least 1, not {value!r}")
    return value


def _tensors_bytes(file: Path) -> int:
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > _MAX_HEADER:
                raise ValueError("header too long")
            header = json.loads(stream.read(length))
        tensors = [tensor for name, tensor in header.items() if name != "__metadata__"]
        return sum(prod(tensor["shape"]) * _bits(tensor["dtype"]) // 8 for tensor in tensors)
    except (OSError, ValueError, RecursionError, struct.error, KeyError, TypeError, AttributeError) as error:
        raise ModelFilesError(f"{file} is no safetensors file: {error}") from error


def _bits(dtype: str) -> int:
    return _BITS.get(dtype) or int(dtype.split("_")[0].lstrip("BFIUE"))  # F8_E4M3 has 8
