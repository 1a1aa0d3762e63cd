"""The tensors of GGUF files under the names that checkpoints of safetensors give them.

Files are memory-mapped. A quantized tensor is rows of bytes, and its name ends with its type: see
`formats/gguf.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from ops.runtime.gguf.config import FACTORS
from ops.runtime.gguf.file import PLAIN, TensorPlace, read_gguf
from ops.runtime.model_files import FileError

_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Names of Gemma 2 and 3, whose norms stand before and after attention and MLP."""
_OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "gemma2": _NORMS_AROUND,
    "gemma3": _NORMS_AROUND,
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
}
"""Names of an architecture that differ from `_IN_LAYER`."""
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


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
        self._one_more = architecture.startswith("gemma")
        self._places: dict[str, TensorPlace] = {
            _name(architecture, name) + ("" if place.kind in PLAIN else f".{place.kind}"): place
            for name, place in gguf.tensors.items()
            if name not in FACTORS
        }

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._places)

    def get_slice(self, name: str) -> _Shape:
        return _Shape(self._places[name].shape)

    def get_tensor(self, name: str) -> Tensor:
        place = self._places[name]
        octets = self._maps[place.path][place.start : place.start + place.nbytes]
        if place.kind not in PLAIN:
            return octets.view(*place.shape[:-1], place.row_bytes)
        tensor = octets.view(_DTYPES[place.kind]).view(place.shape)
        # llama.cpp keeps the factor of Gemma's norms whole, which is 1 + weight.
        return tensor - 1 if self._one_more and name.endswith("norm.weight") else tensor


def _name(architecture: str, name: str) -> str:
    """The name of a tensor elsewhere; its own if it is not known, which then is in no configuration."""
    stem, _, end = name.rpartition(".")
    if found := _LAYER.fullmatch(stem):
        names = {**_IN_LAYER, **_OTHER_NAMES.get(architecture, {})}
        if found[2] in names:
            return f"model.layers.{found[1]}.{names[found[2]]}.{end}"
    return f"{_NAMES[stem]}.{end}" if stem in _NAMES else name
