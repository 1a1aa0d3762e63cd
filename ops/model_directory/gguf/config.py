"""config.json and generation_config.json from the values of a GGUF file.

llama.cpp's names of values are in its gguf-py/gguf/constants.py. What it knows without a value, such as the
scale of Gemma's scores, is written here.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ops.model_directory.gguf.file import PLAIN, Gguf
from ops.model_directory.gguf.gemma import gemma2, gemma3, gemma4
from ops.model_directory.gguf.keys import FACTORS, Keys, feed_forward, head_size, norm_epsilon, rope_scaling
from ops.model_directory.gguf.mixtures import (
    deepseek2,
    experts,
    glm4moe,
    gpt_oss,
    minimax_m2,
    olmoe,
    qwen2moe,
    qwen3moe,
)
from ops.model_directory.gguf.recurrent import kimi_linear, lfm2, lfm2moe, qwen35, qwen35moe
from ops.model_directory.gguf.state_spaces import (
    falcon_h1,
    granite_hybrid,
    granite_scales,
    mamba2,
    nemotron_h,
)
from ops.model_directory.weight_files import GGUF, MADE_OF

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
    *("<EOT>", "<eos>", "</s>", "<|END_OF_TURN_TOKEN|>", "<turn|>", "<|tool_response>"),
)
"""Control tokens that end an answer whatever else the file says, as in llama.cpp. The last one, Gemma 4's,
has another type."""
_CONTROL, _USER_DEFINED = 3, 4

_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}
"""Numbers of the kinds of pooling, by the names of sentence-transformers."""

_SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
"""Keys under general.sampling, and what generation_config.json calls them."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What an architecture of llama.cpp is called elsewhere."""

    name: str
    """Architecture in config.json."""
    more: Callable[["Keys"], dict[str, Any]] = lambda keys: {}
    """Further keys of config.json."""
    layered: bool = False
    """Layers have different sizes. Those of the first one hold where `more` has none."""


def _llama(keys: Keys) -> dict[str, Any]:
    """Llama, Mistral, Mixtral. Rows of queries and keys lie as pairs of dimensions, one after the other."""
    found: dict[str, Any] = {
        "rope_interleave": True,
        "attention_bias": keys.has("blk.0.attn_q.bias"),
        "mlp_bias": keys.has("blk.0.ffn_up.bias"),
    }
    if keys.number("expert_count", 0):
        found |= {"architectures": ["MixtralForCausalLM"], **experts(keys, True, fixed=True)}
    return found


def _granite(keys: Keys) -> dict[str, Any]:
    if not keys.flag("rope.scaling.finetuned", True):
        what = "attention without positions is not supported"
        raise keys.wrong("rope.scaling.finetuned", what)
    return {**_llama(keys), **granite_scales(keys)}


def _mistral3(keys: Keys) -> dict[str, Any]:
    """Ministral 3 and Devstral 2; Mistral Small 3.1, of which nothing is stretched, is a Llama."""
    found, scaling = _llama(keys), rope_scaling(keys)
    if scaling is None:
        return {"architectures": ["LlamaForCausalLM"], **found}
    if keys.number("expert_count", 0):
        raise keys.wrong("expert_count", "experts are not supported beside scaled angles")
    scaling["llama_4_scaling_beta"] = keys.number("attention.temperature_scale", 0.0)
    whole = keys.number("rope.scaling.yarn_log_multiplier")  # Ollama's own files have other keys
    return {**found, "rope_scaling": scaling | {"mscale": 1.0, "mscale_all_dim": whole}}


def _smollm3(keys: Keys) -> dict[str, Any]:
    return {**_llama(keys), "no_rope_layer_interval": 4}


def _seed_oss(keys: Keys) -> dict[str, Any]:
    biases = {"attention_bias": "attn_q", "attention_out_bias": "attn_output", "mlp_bias": "ffn_up"}
    return {key: keys.has(f"blk.0.{tensor}.bias") for key, tensor in biases.items()}


def _phi3(keys: Keys) -> dict[str, Any]:
    return {"sliding_window": keys.number("attention.sliding_window", 0) or None}


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", _llama),
    "mistral3": Architecture("Ministral3ForCausalLM", _mistral3),
    "smollm3": Architecture("SmolLM3ForCausalLM", _smollm3),
    "seed_oss": Architecture("SeedOssForCausalLM", _seed_oss),
    "qwen2": Architecture("Qwen2ForCausalLM"),
    "qwen3": Architecture("Qwen3ForCausalLM"),
    "qwen3vl": Architecture("Qwen3ForCausalLM"),
    "gemma": Architecture("GemmaForCausalLM"),
    "gemma2": Architecture("Gemma2ForCausalLM", gemma2),
    "gemma3": Architecture("Gemma3ForCausalLM", gemma3),
    "gemma4": Architecture("Gemma4ForCausalLM", gemma4, layered=True),
    "phi3": Architecture("Phi3ForCausalLM", _phi3),
    "qwen2moe": Architecture("Qwen2MoeForCausalLM", qwen2moe),
    "qwen3moe": Architecture("Qwen3MoeForCausalLM", qwen3moe),
    "qwen3vlmoe": Architecture("Qwen3MoeForCausalLM", qwen3moe),
    "olmoe": Architecture("OlmoeForCausalLM", olmoe),
    "glm4moe": Architecture("Glm4MoeForCausalLM", glm4moe),
    "minimax-m2": Architecture("MiniMaxM2ForCausalLM", minimax_m2),
    "gpt-oss": Architecture("GptOssForCausalLM", gpt_oss),
    "deepseek2": Architecture("DeepseekV3ForCausalLM", deepseek2),
    "qwen35": Architecture("Qwen3_5ForCausalLM", qwen35),
    "qwen35moe": Architecture("Qwen3_5MoeForCausalLM", qwen35moe),
    "qwen3next": Architecture("Qwen3NextForCausalLM", qwen35moe),
    "lfm2": Architecture("Lfm2ForCausalLM", lfm2, layered=True),
    "lfm2moe": Architecture("Lfm2MoeForCausalLM", lfm2moe, layered=True),
    "kimi-linear": Architecture("KimiLinearForCausalLM", kimi_linear, layered=True),
    "granite": Architecture("GraniteForCausalLM", _granite),
    "granitehybrid": Architecture("GraniteMoeHybridForCausalLM", granite_hybrid, layered=True),
    "nemotron_h": Architecture("NemotronHForCausalLM", nemotron_h, layered=True),
    "nemotron_h_moe": Architecture("NemotronHForCausalLM", nemotron_h, layered=True),
    "falcon-h1": Architecture("FalconH1ForCausalLM", falcon_h1),
    "mamba2": Architecture("Mamba2ForCausalLM", mamba2),
}
"""Architectures of llama.cpp that are read, by their names there."""


def config_of(file: Gguf, factors: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """config.json. `factors`: see `read_factors`. Raises `FileError`."""
    name = file.get("general.architecture", str, "")
    if (architecture := ARCHITECTURES.get(name)) is None:
        known = ", ".join(ARCHITECTURES)
        raise file.wrong("general.architecture", f"{name!r} is not supported ({known})")
    keys = Keys(file, factors, architecture.layered)
    if "token_embd.weight" not in file.tensors:
        raise file.wrong("token_embd.weight", "the tensor is missing")
    nextn = keys.number("nextn_predict_layers", 0)
    heads, head_dim = keys.number("attention.head_count"), head_size(keys)
    latent = keys.number("attention.kv_lora_rank", 0)
    if not latent and keys.number("attention.value_length", head_dim) != head_dim:
        raise keys.wrong("attention.value_length", "another size than of keys")
    config = {
        MADE_OF: GGUF,
        "architectures": [architecture.name],
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": keys.number("embedding_length"),
        "intermediate_size": feed_forward(keys) or None,
        "num_hidden_layers": keys.number("block_count") - nextn,
        "num_nextn_predict_layers": nextn or None,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": keys.number("context_length"),
        "rms_norm_eps": norm_epsilon(keys),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "rotary_dim": keys.number("rope.dimension_count", head_dim),
        "rope_scaling": rope_scaling(keys),
        "tie_word_embeddings": not keys.has("output.weight"),
        "torch_dtype": _dtype(file),
        **architecture.more(keys),
    }
    keys.check_unread()
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
        if (kind == _CONTROL and text in _END_TEXTS) or (kind, text) == (_USER_DEFINED, _END_TEXTS[-1])
    )
    ends = list(dict.fromkeys(each for each in (*named, *known) if each is not None))
    found: dict[str, Any] = {"eos_token_id": ends} if ends else {}
    for key, name in _SAMPLING.items():
        if (value := file.get(f"general.sampling.{key}", (int, float))) is not None:
            found[name] = value
    return found


def pooling_of(file: Gguf) -> dict[str, Any]:
    """The configuration of sentence-transformers' module `Pooling`; empty if the file has no pooling. Raises
    `FileError`."""
    key = f"{file.get('general.architecture', str, '')}.pooling_type"
    if not (kind := file.get(key, int, 0)):
        return {}
    if kind not in _POOLINGS:
        known = ", ".join(f"{number}: {name}" for number, name in _POOLINGS.items())
        raise file.wrong(key, f"{kind} is not supported ({known})")
    return {"pooling_mode": _POOLINGS[kind]}


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
