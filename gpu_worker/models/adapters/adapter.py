"""The factors of one LoRA adapter, read from adapter_model.safetensors."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.models.adapters.config import AdapterConfig, read_adapter_config
from gpu_worker.models.families.family import Family
from gpu_worker.models.wrapped import language_tensors
from ops.model_directory.files import not_there

WEIGHTS = "adapter_model.safetensors"
MOST_LETTERS = 256
"""Of a tensor's name, against which patterns are matched that anybody may have written."""
_PICKLE = "adapter_model.bin"
_PREFIX = "base_model.model."
_FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<factor>[AB])(\.default)?\.weight")
_REFUSED = {
    "lora_magnitude_vector": "DoRA is not supported",
    "lora_embedding_": "adapters of embeddings are not supported",
    "lora_B.bias": "biases of adapters are not supported",
}
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Factors:
    """What is added to the weight [out, in] of a product: scale * up down. Both are memory-mapped."""

    key: str
    """Name of the tensor of `down` in the file, for errors."""
    down: Tensor
    """[rank, in]."""
    up: Tensor
    """[out, rank]."""
    scale: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter under the name by which requests ask for it."""

    name: str
    path: Path
    """Of its factors."""
    factors: Mapping[str, Factors]
    """By the name of the product in the model's checkpoint, without `.weight` and bare: see `Names.bare`."""


def read_adapter(name: str, directory: Path, family: Family) -> Adapter:
    """Read a directory as PEFT writes it. `family`: of the model.

    Raises `ModelError`, which names the key at fault, if it cannot be served.
    """
    config, path = read_adapter_config(directory), directory / WEIGHTS
    if not path.is_file():
        pickled = f": pickles ({_PICKLE}) are never loaded" if (directory / _PICKLE).is_file() else ""
        raise ModelError(f"{directory} has no {WEIGHTS}{pickled}")
    tensors = dict[str, dict[str, str]]()
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for key in sorted(file.keys()):
                module, factor = _place(path, key)
                tensors.setdefault(module, {})[factor] = key
            factors = dict[str, Factors]()
            for module, keys in tensors.items():
                found = {factor: file.get_tensor(key) for factor, key in keys.items()}
                factors[module] = _factors(config, path, module, keys, found)
    except (SafetensorError, OSError) as error:
        why = not_there(path) or f"not a whole safetensors file: {error}"
        raise ModelError(f"{path}: {why}") from error
    if not factors:
        raise ModelError(f"{path}: there are no factors in it")
    return Adapter(name, path, _by_name(path, factors, family))


def _place(path: Path, key: str) -> tuple[str, str]:
    """The module that a tensor belongs to, and which factor it is: A or B. Raises `ModelError`."""
    found = _FACTOR.fullmatch(key)
    if found is None or not key.startswith(_PREFIX):
        reasons = (why for part, why in _REFUSED.items() if part in key)
        what = next(reasons, "it is no factor of a LoRA adapter")
        raise ModelError(f"{path}: tensor {key[:200]}: {what}")
    if len(key) > MOST_LETTERS:
        raise ModelError(
            f"{path}: tensor {key[:200]}: a name of {len(key)} letters, of {MOST_LETTERS} at most"
        )
    return found["module"].removeprefix(_PREFIX), found["factor"]


def _factors(
    config: AdapterConfig, path: Path, module: str, keys: Mapping[str, str], found: Mapping[str, Tensor]
) -> Factors:
    for factor, other in (("A", "B"), ("B", "A")):
        if factor not in keys:
            raise ModelError(f"{path}: tensor {keys[other]}: there is no lora_{factor} beside it")
        tensor = found[factor]
        if tensor.dim() != 2 or tensor.dtype not in _TYPES:
            what = f"shape {list(tensor.shape)} and type {str(tensor.dtype).removeprefix('torch.')}"
            raise ModelError(f"{path}: tensor {keys[factor]}: {what} are not those of a factor")
    down, up, rank = found["A"], found["B"], config.rank_of(module)
    if not (len(down) == up.shape[1] == rank):
        what = f"ranks {len(down)} and {up.shape[1]}, where {config.path.name} means {rank}"
        raise ModelError(f"{path}: tensor {keys['A']}: {what}")
    return Factors(keys["A"], down, up, config.scale_of(module))


def _by_name(path: Path, factors: Mapping[str, Factors], family: Family) -> dict[str, Factors]:
    """Factors by the bare names that the model's tensors have once they are read: see `open_checkpoint`."""
    usual = dict[str, Factors]()
    for own, each in factors.items():
        alone = next(iter(language_tensors([own])), None)
        if alone is None:
            raise ModelError(f"{path}: tensor {each.key}: it does not belong to the language model")
        name = f"{alone}.weight"
        for alias, other in family.aliases.items():
            name = name.replace(alias, other)
        name = family.names.bare(name).removesuffix(".weight")
        if name in usual:
            raise ModelError(f"{path}: tensor {each.key}: {usual[name].key} is for the same product")
        usual[name] = each
    return usual
