"""Language models within vision-language models, and which tensors are of them.

What else such a model has is loaded for the models that see (`vision.py`), and left for others."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Wrapped:
    """The language model of a vision-language model, configured by the object `text_config`, or beside it."""

    language: str = ""
    """Architecture of the language model on its own. Empty: its `model_type` tells it, by `LANGUAGES`."""
    others: Mapping[str, "Wrapped"] = field(default_factory=dict)
    """Other language models that may be in its place, by their `model_type`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that are missing in `text_config`."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys of `language` whatever `text_config` says: within the whole they are not read."""


_GEMMA_3: Mapping[str, Any] = {"vocab_size": 262208, "num_attention_heads": 8}
_OF_4096: dict[str, Any] = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_LLAMA: dict[str, Any] = {"vocab_size": 32000, "intermediate_size": 11008}
_MISTRAL: dict[str, Any] = {"vocab_size": 32000, "intermediate_size": 14336}
_QWEN: dict[str, Any] = {"vocab_size": 151936, "intermediate_size": 22016}
_QWEN_2_VL: Mapping[str, Any] = {
    "num_key_value_heads": 8,
    "max_window_layers": 80,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
}
_QWEN_3_VL: Mapping[str, Any] = {"max_position_embeddings": 128000, "rope_theta": 5e5}
_WITHOUT_WINDOWS: Mapping[str, Any] = {"sliding_window": None}
_WITHOUT_KINDS: Mapping[str, Any] = {"layer_types": None}
"""All layers of a Mistral within another model have windows, if any has."""
_GLM_VL: Mapping[str, Any] = {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5}
_GLM_4V = Wrapped("Glm4ForCausalLM", defaults={**_GLM_VL, "partial_rotary_factor": 1.0})
_GLM_4V_MOE = Wrapped(
    "Glm4MoeForCausalLM",
    defaults={"max_position_embeddings": 65536, "attention_bias": True},
    fixed={"use_qk_norm": False},
)
_VOXTRAL: Mapping[str, Any] = {
    "vocab_size": 131072,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 30,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e8,
}

LANGUAGES: Mapping[str, Wrapped] = {
    "llama": Wrapped("LlamaForCausalLM", defaults=_OF_4096 | _LLAMA),
    "mistral": Wrapped("MistralForCausalLM", defaults=_OF_4096 | _MISTRAL, fixed=_WITHOUT_KINDS),
    "qwen2": Wrapped("Qwen2ForCausalLM", defaults=_OF_4096 | _QWEN),
    "qwen3": Wrapped("Qwen3ForCausalLM", defaults=_OF_4096 | _QWEN),
    "qwen3_moe": Wrapped("Qwen3MoeForCausalLM"),
    "gpt_oss": Wrapped("GptOssForCausalLM"),
}
"""Language models that several others wrap, by their `model_type`, with what `text_config` may leave out."""

WRAPPED: Mapping[str, Wrapped] = {
    "AriaForConditionalGeneration": Wrapped("AriaTextForCausalLM"),
    "EmbeddingGemma2Model": Wrapped("EmbeddingGemma2TextModel"),
    "Exaone4_5_ForConditionalGeneration": Wrapped("Exaone4ForCausalLM"),
    "Gemma3ForConditionalGeneration": Wrapped(
        "Gemma3ForCausalLM", defaults=_GEMMA_3, fixed={"final_logit_softcapping": None}
    ),
    "Gemma3ForSequenceClassification": Wrapped("Gemma3TextForSequenceClassification", defaults=_GEMMA_3),
    "Gemma3nForConditionalGeneration": Wrapped("Gemma3nForCausalLM"),
    "Gemma4ForConditionalGeneration": Wrapped("Gemma4ForCausalLM"),
    "Gemma4UnifiedForConditionalGeneration": Wrapped("Gemma4UnifiedForCausalLM"),
    "Glm4vForConditionalGeneration": _GLM_4V,
    "Glm4vMoeForConditionalGeneration": _GLM_4V_MOE,
    "Glm46VForConditionalGeneration": replace(_GLM_4V, others={"glm4v_moe_text": _GLM_4V_MOE}),
    "Idefics2ForConditionalGeneration": Wrapped(),
    "Idefics3ForConditionalGeneration": Wrapped(),
    "InternVLForConditionalGeneration": Wrapped(),
    "KimiK25ForConditionalGeneration": Wrapped("DeepseekV3ForCausalLM"),
    "Lfm2VlForConditionalGeneration": Wrapped("Lfm2ForCausalLM", {"lfm2_moe": Wrapped("Lfm2MoeForCausalLM")}),
    "Llama4ForConditionalGeneration": Wrapped("Llama4ForCausalLM"),
    "LlavaForConditionalGeneration": Wrapped(),
    "LlavaNextForConditionalGeneration": Wrapped(),
    "LlavaOnevisionForConditionalGeneration": Wrapped(),
    "Mistral3ForConditionalGeneration": Wrapped(
        "MistralForCausalLM",
        {"ministral3": Wrapped("Ministral3ForCausalLM"), "mistral4": Wrapped("Mistral4ForCausalLM")},
        fixed=_WITHOUT_KINDS,
    ),
    "Qwen2AudioForConditionalGeneration": Wrapped(),
    "Qwen2VLForConditionalGeneration": Wrapped("Qwen2ForCausalLM", defaults=_QWEN_2_VL),
    "Qwen2_5_VLForConditionalGeneration": Wrapped("Qwen2ForCausalLM", defaults=_QWEN_2_VL),
    "Qwen3VLForConditionalGeneration": Wrapped(
        "Qwen3ForCausalLM", defaults=_QWEN_3_VL, fixed=_WITHOUT_WINDOWS
    ),
    "Qwen3VLMoeForConditionalGeneration": Wrapped(
        "Qwen3MoeForCausalLM",
        defaults={**_QWEN_3_VL, "num_key_value_heads": 16, "norm_topk_prob": True, "mlp_only_layers": []},
        fixed=_WITHOUT_WINDOWS,
    ),
    "Qwen3_5ForConditionalGeneration": Wrapped("Qwen3_5ForCausalLM"),
    "Qwen3_5MoeForConditionalGeneration": Wrapped("Qwen3_5MoeForCausalLM"),
    "SmolVLMForConditionalGeneration": Wrapped(),
    "VoxtralForConditionalGeneration": Wrapped(defaults=_VOXTRAL),
}
"""Language models by the architecture of the whole model."""

_OF_BOTH = ("dtype", "torch_dtype", "quantization_config", "id2label", "num_labels", "problem_type")
"""Keys beside `text_config` that hold for the language model too, where `text_config` has none of its own."""

_OF_THE_WHOLE = "tie_word_embeddings"
"""The head is the whole model's, so its key wins over the one in `text_config`, which often has what some
class takes for usual. Where the checkpoint has no head, it is tied whatever they say."""

_WITHIN = {"language_model.": "", "model.language_model.": "model.", "model.text_model.": "model."}
"""Prefix of the language model's tensors within the whole, in older and newer checkpoints, to their prefix in
a checkpoint of the language model on its own."""

_PARTS = (
    "vision_tower",
    "vision_model",
    "audio_tower",
    "multi_modal_projector",
    "mm_projector",
    "connector",
    "image_newline",
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
    kind = str(text.get("model_type"))
    wrapped = wrapped.others.get(kind, wrapped)
    usual = wrapped.defaults
    if not wrapped.language:
        wrapped = LANGUAGES.get(kind) or Wrapped(f"{one} with the language model {kind}")
        usual = {**wrapped.defaults, **usual}
    shared = {key: config[key] for key in _OF_BOTH if key in config}
    given = {key: value for key, value in text.items() if value is not None or key not in shared}
    if config.get(_OF_THE_WHOLE) is not None:
        given[_OF_THE_WHOLE] = config[_OF_THE_WHOLE]
    fixed = {**wrapped.fixed, "architectures": [wrapped.language]}
    return {**usual, **shared, **given, **fixed}  # null says that it is off


def language_tensors(names: Iterable[str]) -> dict[str, str]:
    """Names of the language model's tensors in the checkpoint, by their names in a checkpoint of its own."""
    names = list(names)
    return {_alone(name): name for name in names if not f"{name}.".startswith(_BESIDE)}


def tower_tensors(names: Iterable[str]) -> dict[str, str]:
    """Names of the tensors of all other parts, as a checkpoint has them."""
    return {name: name for name in names if f"{name}.".startswith(_BESIDE)}


def _alone(name: str) -> str:
    for within, alone in _WITHIN.items():
        if name.startswith(within):
            return alone + name.removeprefix(within)
    return name
