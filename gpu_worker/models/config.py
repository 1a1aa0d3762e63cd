"""What config.json says of a model, in one shape whatever version of transformers wrote it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpu_worker.errors import ModelError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

WINDOWED = frozenset({"MistralForCausalLM"})
"""Architectures that mean their `sliding_window`; others carry one that nobody reads."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding (Su et al. 2021) and how it is stretched to longer contexts."""

    theta: float = 10000.0
    kind: str = "default"
    """default, linear (positions divided by `factor`) or llama3 (only long wavelengths are)."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's shape."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    """Longest sequence that the model was made for. Tokens."""
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    windows: tuple[int, ...]
    """Positions that a token sees in each layer, its own included; 0: all before it."""
    dtype: torch.dtype
    """Type of the checkpoint's weights."""

    @property
    def window(self) -> int:
        """Positions that the layer with the widest view sees; 0: all. What lies before them is not needed."""
        return max(self.windows) if all(self.windows) else 0


def read_config(directory: Path) -> ModelConfig:
    """Read `directory`/config.json. Raises `ModelError`, with the key at fault if it is one."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(f"{directory} is not a model directory: it has no config.json")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: not a JSON object")
    if "quantization_config" in values:
        raise ModelError(f"{path}: quantization_config: quantized checkpoints are not supported")
    if values.get("hidden_act", "silu") != "silu":
        raise ModelError(f"{path}: hidden_act: {values['hidden_act']!r} is not supported, only 'silu'")
    return _config_from(_Values(path, values))


class _Values:
    """Typed look-ups that say which key of which file is wrong."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path = path
        self.values = values

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{self.path}: {key}: a positive integer is needed, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
            raise ModelError(f"{self.path}: {key}: a positive number is needed, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.path}: {key}: true or false is needed, not {value!r}")
        return value


def _config_from(values: _Values) -> ModelConfig:
    architectures = values.values.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise ModelError(f"{values.path}: architectures: exactly one is needed, not {architectures!r}")
    hidden_size = values.positive("hidden_size")
    heads = values.positive("num_attention_heads")
    kv_heads = values.positive("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelError(f"{values.path}: num_key_value_heads: {kv_heads} does not divide {heads} heads")
    dtype = values.values.get("dtype") or values.values.get("torch_dtype") or "float32"
    if dtype not in _DTYPES:
        raise ModelError(f"{values.path}: dtype: {dtype!r} is not one of {', '.join(_DTYPES)}")
    head_dim = values.positive("head_dim", max(1, hidden_size // heads))
    if head_dim % 2:
        raise ModelError(f"{values.path}: head_dim: {head_dim} is odd, and rotary embeddings pair dimensions")
    architecture = str(architectures[0])
    return ModelConfig(
        architecture=architecture,
        vocab_size=values.positive("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=values.positive("intermediate_size"),
        num_layers=values.positive("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=values.positive("max_position_embeddings", 2048),
        rms_norm_eps=values.number("rms_norm_eps", 1e-6),
        rope=_rope_from(values),
        tie_word_embeddings=values.flag("tie_word_embeddings"),
        attention_bias=values.flag("attention_bias"),
        mlp_bias=values.flag("mlp_bias"),
        windows=_windows_from(values, architecture),
        dtype=_DTYPES[dtype],
    )


def _windows_from(values: _Values, architecture: str) -> tuple[int, ...]:
    """`layer_types` says which layers have a sliding window; without it all have, or every one but each
    `sliding_window_pattern`-th."""
    layers = values.positive("num_hidden_layers")
    if (
        architecture not in WINDOWED
        or values.values.get("sliding_window") is None
        or not values.flag("use_sliding_window", True)
    ):
        return (0,) * layers
    window = values.positive("sliding_window")
    pattern = values.positive("sliding_window_pattern", layers + 1)
    types = values.values.get("layer_types") or [
        "sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(layers)
    ]
    if not isinstance(types, list) or len(types) != layers:
        raise ModelError(f"{values.path}: layer_types: a list of {layers} is needed, not {types!r}")
    if unknown := [kind for kind in types if kind not in ("sliding_attention", "full_attention")]:
        raise ModelError(f"{values.path}: layer_types: {unknown[0]!r} is not supported")
    return tuple(window if kind == "sliding_attention" else 0 for kind in types)


def _rope_from(values: _Values) -> RopeConfig:
    """`rope_parameters` since transformers 5; before it `rope_theta` and perhaps `rope_scaling`."""
    key = "rope_parameters" if values.values.get("rope_parameters") else "rope_scaling"
    given = values.values.get(key) or {}
    if not isinstance(given, dict):
        raise ModelError(f"{values.path}: {key}: an object is needed, not {given!r}")
    nested = _Values(values.path, {"rope_theta": values.values.get("rope_theta", 10000.0)} | given)
    kind = given.get("rope_type", given.get("type", "default"))
    theta = nested.number("rope_theta")
    if nested.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelError(f"{values.path}: {key}: partial_rotary_factor is not supported")
    if kind == "default":
        return RopeConfig(theta)
    if kind == "linear":
        return RopeConfig(theta, kind, nested.number("factor"))
    if kind == "llama3":
        return RopeConfig(
            theta,
            kind,
            nested.number("factor"),
            nested.number("low_freq_factor"),
            nested.number("high_freq_factor"),
            nested.positive("original_max_position_embeddings"),
        )
    raise ModelError(f"{values.path}: {key}: rope type {kind!r} is not supported (default, linear, llama3)")
