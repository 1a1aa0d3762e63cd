"""config.json and generation_config.json from the values of a GGUF file.

llama.cpp's names of values are in its gguf-py/gguf/constants.py. What it knows without a value, such as the
scale of Gemma's scores, is written here.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.runtime.gguf.file import PLAIN, Gguf

FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors of factors by which wavelengths are stretched: of Llama 3, and of LongRoPE."""

_END_TEXTS = (
    *(
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|eom_id|>",
        "<|end_of_text|>",
    ),
    *("<EOT>", "<eos>", "</s>", "<|END_OF_TURN_TOKEN|>"),
)
"""Control tokens that end an answer whatever else the file says, as in llama.cpp."""
_CONTROL = 3

_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
"""Keys under general.sampling, and what generation_config.json calls them."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an architecture of llama.cpp is called elsewhere."""

    name: str
    """Architecture in config.json."""
    more: Callable[["Keys"], dict[str, Any]] = lambda keys: {}
    """Further keys of config.json."""


class Keys:
    """The values of a file under the name of its architecture."""

    def __init__(self, file: Gguf) -> None:
        self.file = file
        self.architecture: str = file.get("general.architecture", str, "")

    def number(self, key: str, default: float | None = None) -> Any:
        """Raises `FileError` if there is no such number, and no default."""
        value = self.file.get(f"{self.architecture}.{key}", (int, float, list), default)
        if isinstance(value, list):  # of each layer
            if not value or any(each != value[0] for each in value):
                raise self.file.wrong(f"{self.architecture}.{key}", "its layers have different sizes")
            value = value[0]
        if value is None:
            raise self.file.wrong(f"{self.architecture}.{key}", "the value is missing")
        return value

    def text(self, key: str) -> str:
        found: str = self.file.get(f"{self.architecture}.{key}", str, "")
        return found

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors


def _gemma(keys: Keys, layers_of_27b: int) -> dict[str, Any]:
    """Gemma 2 and 3: the largest of each scales scores by another size than its heads'."""
    largest = keys.number("block_count") == layers_of_27b
    size = keys.number("embedding_length") // keys.number("attention.head_count")
    return {
        "query_pre_attn_scalar": size if largest else _head_dim(keys),
        "sliding_window": keys.number("attention.sliding_window"),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 0) or None,
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0) or None,
    }


def _gemma2(keys: Keys) -> dict[str, Any]:
    return _gemma(keys, 46)


def _gemma3(keys: Keys) -> dict[str, Any]:
    local = keys.number("rope.freq_base_swa", 10000.0)
    return _gemma(keys, 62) | {
        "rope_local_base_freq": local,
        "rope_theta": keys.number("rope.freq_base", 1e6),
        "sliding_window_pattern": keys.number("attention.sliding_window_pattern", 6),
    }


def _llama(keys: Keys) -> dict[str, Any]:
    """Llama and Mistral. Rows of queries and keys lie as pairs of dimensions, one pair after the other."""
    return {
        "rope_interleave": True,
        "attention_bias": keys.has("blk.0.attn_q.bias"),
        "mlp_bias": keys.has("blk.0.ffn_up.bias"),
    }


def _phi3(keys: Keys) -> dict[str, Any]:
    return {"sliding_window": keys.number("attention.sliding_window", 0) or None}


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", _llama),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "gemma": Architecture("GemmaForCausalLM"),
    "gemma2": Architecture("Gemma2ForCausalLM", _gemma2),
    "gemma3": Architecture("Gemma3ForCausalLM", _gemma3),
    "phi3": Architecture("Phi3ForCausalLM", _phi3),
}
"""Architectures of llama.cpp that are read, by their names there."""


def config_of(file: Gguf, factors: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """config.json. `factors`: see `read_factors`. Raises `FileError`."""
    keys = Keys(file)
    if (architecture := ARCHITECTURES.get(keys.architecture)) is None:
        known = ", ".join(ARCHITECTURES)
        raise file.wrong("general.architecture", f"{keys.architecture!r} is not supported ({known})")
    if keys.number("expert_count", 0):
        raise file.wrong(f"{keys.architecture}.expert_count", "experts of GGUF files are not supported")
    if "token_embd.weight" not in file.tensors:
        raise file.wrong("token_embd.weight", "the tensor is missing")
    heads, head_dim = keys.number("attention.head_count"), _head_dim(keys)
    if keys.number("attention.value_length", head_dim) != head_dim:
        raise file.wrong(f"{keys.architecture}.attention.value_length", "another size than of keys")
    config = {
        "architectures": [architecture.name],
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": keys.number("embedding_length"),
        "intermediate_size": keys.number("feed_forward_length"),
        "num_hidden_layers": keys.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.number("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "rotary_dim": keys.number("rope.dimension_count", head_dim),
        "rope_scaling": _scaling(keys, factors),
        "tie_word_embeddings": not keys.has("output.weight"),
        "torch_dtype": _dtype(file),
        **architecture.more(keys),
    }
    kinds = {tensor.kind for tensor in file.tensors.values()}
    if kinds - set(PLAIN):
        config["quantization_config"] = {"quant_method": "gguf"}
    return {key: value for key, value in config.items() if value is not None}


def generation_of(file: Gguf) -> dict[str, Any]:
    """generation_config.json: end tokens, and sampling parameters that the file recommends."""
    tokens: list[Any] = file.get("tokenizer.ggml.tokens", list, [])
    types: list[Any] = file.get("tokenizer.ggml.token_type", list, [])
    named = [file.get(f"tokenizer.ggml.{name}_token_id", int) for name in ("eos", "eot", "eom")]
    known = (
        number
        for number, (text, kind) in enumerate(zip(tokens, types, strict=False))
        if kind == _CONTROL and text in _END_TEXTS
    )
    ends = list(dict.fromkeys(each for each in (*named, *known) if each is not None))
    found: dict[str, Any] = {"eos_token_id": ends} if ends else {}
    for key, name in _SAMPLING.items():
        if (value := file.get(f"general.sampling.{key}", (int, float))) is not None:
            found[name] = value
    return found


def _head_dim(keys: Keys) -> int:
    size = keys.number("embedding_length") // max(1, keys.number("attention.head_count"))
    found: int = keys.number("attention.key_length", size)
    return found


def _scaling(keys: Keys, factors: Mapping[str, Sequence[float]]) -> dict[str, Any] | None:
    """Object `rope_scaling`. None: angles are not scaled."""
    longest = keys.number("context_length")
    original = keys.number("rope.scaling.original_context_length", longest)
    every, short, long = (factors.get(name) for name in FACTORS)
    if every:
        short = long = every
    if short and long:
        found = {
            "rope_type": "longrope",
            "short_factor": list(short),
            "long_factor": list(long),
            "original_max_position_embeddings": original,
            "factor": longest / original,
        }
        given = keys.number("rope.scaling.attn_factor", 1.0 if every else 0)
        return found | ({"attention_factor": given} if given else {})
    kind = keys.text("rope.scaling.type")
    if kind in ("", "none"):
        return None
    found = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if kind == "yarn":
        found["original_max_position_embeddings"] = original
    return found


def _dtype(file: Gguf) -> str:
    """Type of the activations if no setting names one: quantized weights come from bfloat16, mostly."""
    kinds = {tensor.kind for tensor in file.tensors.values() if len(tensor.shape) > 1}
    names = {frozenset({"F32"}): "float32", frozenset({"F16"}): "float16"}
    return names.get(frozenset(kinds), "bfloat16")


def read_factors(file: Gguf) -> dict[str, tuple[float, ...]]:
    """The numbers of the tensors of `FACTORS` that a file has. Raises `FileError`."""
    found: dict[str, tuple[float, ...]] = {}
    for name in FACTORS:
        if (place := file.tensors.get(name)) is None:
            continue
        if place.kind != "F32" or len(place.shape) != 1:
            raise file.wrong(name, f"a list of F32 is needed, not {place.kind} {list(place.shape)}")
        with place.path.open("rb") as opened:
            opened.seek(place.start)
            found[name] = struct.unpack(f"<{place.shape[0]}f", opened.read(place.nbytes))
    return found
