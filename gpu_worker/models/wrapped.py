"""Language models within vision-language models. Only text is served; other tensors are not loaded."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The language model of a vision-language model, configured by the object `text_config`, or beside it."""

    language: str
    """Architecture of the language model on its own."""
    others: Mapping[str, str] = field(default_factory=dict)
    """Architectures of other language models that may be in its place, by their `model_type`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that are missing in `text_config`."""


_GEMMA_3: Mapping[str, Any] = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
}

WRAPPED: Mapping[str, Wrapped] = {
    "AriaForConditionalGeneration": Wrapped("AriaTextForCausalLM"),
    "Gemma3ForConditionalGeneration": Wrapped("Gemma3ForCausalLM", defaults=_GEMMA_3),
    "Gemma3ForSequenceClassification": Wrapped("Gemma3TextForSequenceClassification", defaults=_GEMMA_3),
    "Gemma3nForConditionalGeneration": Wrapped("Gemma3nForCausalLM"),
    "Gemma4ForConditionalGeneration": Wrapped("Gemma4ForCausalLM"),
    "Gemma4UnifiedForConditionalGeneration": Wrapped("Gemma4UnifiedForCausalLM"),
    "Llama4ForConditionalGeneration": Wrapped("Llama4ForCausalLM"),
    "Mistral3ForConditionalGeneration": Wrapped(
        "MistralForCausalLM", {"ministral3": "Ministral3ForCausalLM", "mistral4": "Mistral4ForCausalLM"}
    ),
    "Qwen2VLForConditionalGeneration": Wrapped("Qwen2ForCausalLM"),
    "Qwen2_5_VLForConditionalGeneration": Wrapped("Qwen2ForCausalLM"),
    "Qwen3VLForConditionalGeneration": Wrapped("Qwen3ForCausalLM"),
    "Qwen3VLMoeForConditionalGeneration": Wrapped(
        "Qwen3MoeForCausalLM", defaults={"norm_topk_prob": True, "mlp_only_layers": []}
    ),
}
"""Language models by the architecture of the whole model."""

_OF_BOTH = ("dtype", "torch_dtype", "quantization_config", "id2label", "num_labels", "problem_type")
"""Keys beside `text_config` that hold for the language model too, where `text_config` has none of its own."""

_OF_THE_WHOLE = "tie_word_embeddings"
"""The head is the whole model's, so its key wins over the one in `text_config`, as in transformers."""

_WITHIN = {"language_model.": "", "model.language_model.": "model."}
"""Prefix of the language model's tensors within the whole, in older and newer checkpoints, to their prefix in
a checkpoint of the language model on its own."""

_PARTS = (
    "vision_tower",
    "vision_model",
    "audio_tower",
    "multi_modal_projector",
    "embed_vision",
    "embed_audio",
    "visual",
)
_BESIDE = tuple(f"{base}{part}." for base in ("", "model.") for part in _PARTS)


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """config.json of the language model on its own. Other models' config.json is returned as it is."""
    architectures = config.get("architectures")
    one = str(architectures[0]) if isinstance(architectures, list) and len(architectures) == 1 else ""
    wrapped, text = WRAPPED.get(one), config.get("text_config", config)  # early Qwen VL have no such object
    if wrapped is None or not isinstance(text, Mapping):
        return config
    shared = {key: config[key] for key in _OF_BOTH if key in config}
    given = {key: value for key, value in text.items() if value is not None}
    if config.get(_OF_THE_WHOLE) is not None:
        given[_OF_THE_WHOLE] = config[_OF_THE_WHOLE]
    language = wrapped.others.get(str(text.get("model_type")), wrapped.language)
    return {**wrapped.defaults, **shared, **given, "architectures": [language]}


def language_tensors(names: Iterable[str]) -> dict[str, str]:
    """Names of the language model's tensors in the checkpoint, by their names in a checkpoint of its own."""
    names = list(names)
    return {_alone(name): name for name in names if not name.startswith(_BESIDE)}


def _alone(name: str) -> str:
    for within, alone in _WITHIN.items():
        if name.startswith(within):
            return alone + name.removeprefix(within)
    return name
