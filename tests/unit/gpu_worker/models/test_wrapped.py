"""Language models within others compute what the whole model computes of text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.config import read_config
from gpu_worker.models.families import FAMILIES
from gpu_worker.models.wrapped import LANGUAGES, WRAPPED, language_part, language_tensors
from tests.unit.gpu_worker.behaviour.test_checkpoint_formats import logits_of
from tests.unit.gpu_worker.behaviour.test_families import PROMPT, USUAL
from tests.unit.gpu_worker.models.test_config import compare, completed, read

KIMI = "KimiK25ForConditionalGeneration"
"""transformers has another name for it."""
QWEN: dict[str, Any] = {"patch_size": 2, "spatial_merge_size": 1, "temporal_patch_size": 1, "num_heads": 2}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
VISION: dict[str, dict[str, Any]] = {
    "Qwen2VL": QWEN | {"depth": 1, "embed_dim": 16, "hidden_size": 32},
    "Qwen2_5_VL": QWEN | {"depth": 1, "hidden_size": 16, "intermediate_size": 8, "out_hidden_size": 32},
    **dict.fromkeys(
        ("Qwen3VL", "Qwen3VLMoe"),
        QWEN
        | {"depth": 1, "hidden_size": 16, "intermediate_size": 8, "out_hidden_size": 32}
        | {"num_position_embeddings": 4, "deepstack_visual_indexes": [0]},
    ),
    "Aria": {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    | {"patch_size": 2, "image_size": 8},
}
TEXT_OF_EXPERTS: dict[str, Any] = {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2}
TEXT_OF_EXPERTS |= {"moe_intermediate_size": 24}
SMALL: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2}
SEES = SMALL | {"num_attention_heads": 2, "patch_size": 2, "image_size": 8}
HEARS = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 8}
ROTATED_IN_PART = {
    "rope_parameters": SECTIONS | {"mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5},
    "head_dim": 16,
    "attention_bias": True,
}
TWO_HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
GLM: dict[str, Any] = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 8}
GLM |= {"out_hidden_size": 32, "patch_size": 2, "image_size": 8, "spatial_merge_size": 1}
WITHIN: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "LlavaNext": ("llama", {}, {"vision_config": SEES}),
    "LlavaOnevision": ("qwen2", {}, {"vision_config": SEES}),
    "Llava": ("mistral", {"sliding_window": None}, {"vision_config": SEES}),
    "Idefics2": ("mistral", {}, {"vision_config": SEES, "perceiver_config": {"resampler_depth": 1}}),
    "Idefics3": ("llama", {}, {"vision_config": SEES}),
    "SmolVLM": ("llama", {}, {"vision_config": SEES}),
    "InternVL": ("qwen3", {"head_dim": 8}, {"vision_config": SEES}),
    "InternVL with experts": ("qwen3_moe", TEXT_OF_EXPERTS, {"vision_config": SEES}),
    "InternVL with sinks": (
        "gpt_oss",
        {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
        {"vision_config": SEES},
    ),
    "Exaone4_5_": (
        "exaone4",
        {"sliding_window": 9, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        {
            "vision_config": QWEN
            | {"depth": 1, "hidden_size": 16, "intermediate_size": 8, "out_hidden_size": 32}
        },
    ),
    "Glm4v": ("glm4v_text", ROTATED_IN_PART | TWO_HEADS, {"vision_config": GLM}),
    "Glm46V": ("glm4v_text", ROTATED_IN_PART | TWO_HEADS, {"vision_config": GLM}),
    "Glm4vMoe": (
        "glm4v_moe_text",
        ROTATED_IN_PART
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 1},
        {"vision_config": GLM},
    ),
    "Kimi_K25": (
        "deepseek_v3",
        {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
        | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        | {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "num_key_value_heads": 4},
        {"vision_config": SMALL | {"num_attention_heads": 1, "patch_size": 2}},
    ),
    "Lfm2Vl": (
        "lfm2",
        {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8},
        {"vision_config": SMALL | {"num_attention_heads": 2, "patch_size": 2, "num_patches": 16}},
    ),
    "Mistral3": ("mistral", {"sliding_window": None}, {"vision_config": SEES}),
    "Mistral3 with Ministral 3": (
        "ministral3",
        {
            "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 32.0}
            | {"beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
            | {"original_max_position_embeddings": 16}
        },
        {"vision_config": SEES},
    ),
    "Gemma3": (
        "gemma3_text",
        {"head_dim": 8, "sliding_window": 9, "query_pre_attn_scalar": 8}
        | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
        {"vision_config": SEES, "mm_tokens_per_image": 4},
    ),
    "Llama4": (
        "llama4_text",
        {"head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 4, "attention_chunk_size": 16},
        {
            "vision_config": SEES
            | {"vision_output_dim": 16, "projector_input_dim": 16, "projector_output_dim": 16}
        },
    ),
    "Voxtral": ("llama", {"head_dim": 8}, {"audio_config": SMALL | {"num_attention_heads": 2}}),
    "Qwen2Audio": ("qwen2", {}, {"audio_config": HEARS}),
}
"""`model_type` of the language model within, what its configuration has besides, and other parts."""
TEXT: dict[str, dict[str, Any]] = {
    "Qwen3VL": {"head_dim": 8},
    "Qwen3VLMoe": TEXT_OF_EXPERTS,
    "Aria": {"head_dim": 8, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
}


def whole_model(name: str) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name.partition(' ')[0]}ForConditionalGeneration")
    if name in WITHIN:
        language, text, parts = WITHIN[name]
        text = {**USUAL, "model_type": language} | text
    else:
        text, parts = (
            {**USUAL, "rope_parameters": SECTIONS} | TEXT.get(name, {}),
            {"vision_config": VISION[name]},
        )
    config = kind.config_class(text_config=text, tie_word_embeddings=False, **parts)
    return kind(config).eval()


def as_kimi_publishes(directory: Path) -> None:
    """With its own names: transformers writes the language model's layers as it writes those that see."""
    tensors = load_file(directory / "model.safetensors")
    named = {name.replace("model.blocks.", "model.layers."): tensor for name, tensor in tensors.items()}
    assert "language_model.model.layers.0.input_layernorm.weight" in named
    save_file(named, directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    config["architectures"] = ["KimiK25ForConditionalGeneration"]
    config["text_config"]["model_type"] = "kimi_k2"
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", [*VISION, *WITHIN])
def test_text_alone_is_computed_as_by_the_whole_model(tmp_path: Path, name: str) -> None:
    model = whole_model(name)
    model.save_pretrained(tmp_path)
    if name == "Kimi_K25":
        as_kimi_publishes(tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    found = logits_of(tmp_path, ReferenceKernels())
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=5e-5)
    assert expected.std() > 0.02


KINDS = ["full_attention", "sliding_attention", "full_attention"]
LATE = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
FULL = {"rope_parameters": SECTIONS | {"mrope_section": [4, 2, 2]}}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Qwen3VL", LATE),
        ("Qwen3VLMoe", LATE),
        ("Llava", {"sliding_window": 5, "layer_types": KINDS}),
        ("Mistral3", {"sliding_window": 5, "layer_types": KINDS}),
        ("Gemma3", {"final_logit_softcapping": 0.5}),
        ("Glm4v", FULL),
        ("Glm46V", FULL),
        ("Glm4vMoe", {"use_qk_norm": True}),
    ],
    ids=str,
)
def test_keys_mean_what_the_whole_model_reads_in_them(
    tmp_path: Path, name: str, changes: dict[str, Any]
) -> None:
    """The same language model may read others on its own."""
    model = whole_model(name)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"] |= changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    read_anew = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = read_anew(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(tmp_path, ReferenceKernels()), expected, atol=5e-5, rtol=5e-5)


def test_the_text_of_glm_46v_with_experts(tmp_path: Path) -> None:
    """It is that of GLM 4.5V, and not that of the model without experts."""
    text = {"model_type": "glm4v_moe_text", "use_qk_norm": True, "n_routed_experts": 8}
    text |= {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
    first, second = (
        read(tmp_path, {"architectures": [f"{name}ForConditionalGeneration"], "text_config": USUAL | text})
        for name in ("Glm4vMoe", "Glm46V")
    )
    assert first == second


def test_experts_as_they_are_published(tmp_path: Path) -> None:
    """Those of Qwen3-VL are [experts, in, out], but transformers writes [experts, out, in]."""
    model = whole_model("Qwen3VLMoe")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    stacked = [name for name in tensors if ".experts." in name]
    assert [tensors[name].shape for name in stacked[:2]] == [(4, 32, 24), (4, 48, 32)]
    turned = {name: tensors[name].mT.contiguous() for name in stacked}
    save_file(tensors | turned, tmp_path / "model.safetensors")
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(tmp_path, ReferenceKernels()), expected, atol=5e-5, rtol=5e-5)


def test_a_configuration_that_has_text_at_its_top(tmp_path: Path) -> None:
    """As Qwen published its first models that see, with their first names of tensors."""
    model = whole_model("Qwen2_5_VL")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    text = config.pop("text_config")
    rope = {"rope_theta": 1e4, "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    del text["rope_parameters"], text["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(text | config | rope))
    tensors = {
        name.replace("model.language_model.", "model.").removeprefix("model.")
        if "visual" in name
        else name.replace("model.language_model.", "model."): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    assert any(name.startswith("visual.") for name in tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(tmp_path, ReferenceKernels()), expected, atol=5e-5, rtol=5e-5)


def test_what_lies_beside_the_language_model_is_left() -> None:
    names = ["model.language_model.norm.weight", "model.embed_vision.weight", "lm_head.weight"]
    assert language_tensors(names) == {
        "model.norm.weight": "model.language_model.norm.weight",
        "lm_head.weight": "lm_head.weight",
    }


def test_names_of_a_language_model_alone() -> None:
    names = ["model.norm.weight", "lm_head.weight"]
    assert language_tensors(names) == {name: name for name in names}


@pytest.mark.parametrize("kind", [kind for kind, one in LANGUAGES.items() if one.defaults])
def test_what_is_left_out_of_the_text(tmp_path: Path, kind: str) -> None:
    """Old files have only what differs from the language model's usual configuration."""
    whole = {"architectures": ["LlavaForConditionalGeneration"]}
    text = {"model_type": kind, "vocab_size": 32064, "rms_norm_eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": text}))
    ours = read_config(tmp_path)
    theirs = transformers.LlavaConfig(text_config=text).text_config
    assert ours.architecture == LANGUAGES[kind].language
    assert (ours.vocab_size, ours.hidden_size) == (32064, theirs.hidden_size)
    assert (ours.intermediate_size, ours.num_layers) == (theirs.intermediate_size, theirs.num_hidden_layers)
    assert (ours.num_heads, ours.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert ours.head_dim == (
        getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    )
    assert ours.max_position == theirs.max_position_embeddings
    assert ours.windows == (getattr(theirs, "sliding_window", None) or 0,) * ours.num_layers


@pytest.mark.parametrize(
    "architecture", [name for name, one in WRAPPED.items() if one.language in FAMILIES and name != KIMI]
)
def test_a_missing_key_of_the_text_has_the_value_of_transformers(tmp_path: Path, architecture: str) -> None:
    kind = getattr(transformers, architecture)
    whole = completed(kind, {"architectures": [architecture]})
    text = whole["text_config"] | ({"head_dim": 128} if architecture.startswith("Glm4vMoe") else {})
    less = (
        (missing, whole | {"text_config": {key: value for key, value in text.items() if key != missing}})
        for missing in text.keys() - {"model_type"}
    )
    compared = compare(tmp_path, kind, less)
    assert not {key: found for key, found in compared.items() if found}
    assert len(compared) > len(text) / 3


def test_the_text_of_voxtral(tmp_path: Path) -> None:
    """It has other values than Llama where it has none."""
    whole = {"architectures": ["VoxtralForConditionalGeneration"], "text_config": {"model_type": "llama"}}
    kind = transformers.VoxtralForConditionalGeneration
    assert read(tmp_path, whole) == read(tmp_path, completed(kind, whole))


def test_what_the_text_says_is_off_stays_off(tmp_path: Path) -> None:
    text = {"model_type": "mistral", "sliding_window": None}
    whole = {"architectures": ["LlavaNextForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    assert set(read_config(tmp_path).windows) == {0}


def test_a_language_model_within_that_is_not_known(tmp_path: Path) -> None:
    whole = {"architectures": ["LlavaForConditionalGeneration"], "text_config": {"model_type": "own"}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(ModelError, match="LlavaForConditionalGeneration with the language model own is not"):
        read_config(tmp_path)


@pytest.mark.parametrize("config", [{"architectures": ["LlamaForCausalLM"]}, {"architectures": "Llama"}, {}])
def test_the_configuration_of_a_language_model_alone(config: dict[str, Any]) -> None:
    assert language_part(config) is config
