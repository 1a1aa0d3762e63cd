"""Language models within models that also see. Text is served; what else a checkpoint has is left alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Wrapped:
    """What stands under `text_config`."""

    language: str
    """What config.json would call the language model if it stood alone."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a key means when it is left out there."""


WRAPPED: Mapping[str, Wrapped] = {
    "Gemma3ForConditionalGeneration": Wrapped(
        "Gemma3ForCausalLM",
        {
            "vocab_size": 262208,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "max_position_embeddings": 131072,
        },
    ),
    "Mistral3ForConditionalGeneration": Wrapped("MistralForCausalLM"),
}
"""By what config.json calls the whole."""

_OF_BOTH = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
"""Keys that stand beside `text_config` and are meant for it too."""

_WITHIN = {"language_model.": "", "model.language_model.": "model."}
"""What the language model's tensors begin with, in older and in newer checkpoints, and would if it stood
alone."""

_BESIDE = tuple(
    base + part for base in ("", "model.") for part in ("vision_tower.", "multi_modal_projector.")
)


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json as it would be if the language model in it stood alone; of others their own."""
    architectures = config.get("architectures")
    one = str(architectures[0]) if isinstance(architectures, list) and len(architectures) == 1 else ""
    wrapped, text = WRAPPED.get(one), config.get("text_config")
    if wrapped is None or not isinstance(text, dict):
        return config
    shared = {key: config[key] for key in _OF_BOTH if key in config}
    given = {key: value for key, value in text.items() if value is not None}
    return {**wrapped.defaults, **shared, **given, "architectures": [wrapped.language]}


def language_tensors(names: Iterable[str]) -> dict[str, str]:
    """What a checkpoint calls the language model's tensors, by what it would if that stood alone."""
    names = list(names)
    if not any(name.startswith(tuple(_WITHIN)) for name in names):
        return {name: name for name in names}
    return {_alone(name): name for name in names if not name.startswith(_BESIDE)}


def _alone(name: str) -> str:
    for within, alone in _WITHIN.items():
        if name.startswith(within):
            return alone + name.removeprefix(within)
    return name
