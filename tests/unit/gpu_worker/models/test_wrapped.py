"""Language models within others compute what the whole model computes of text."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.wrapped import language_part, language_tensors
from tests.unit.gpu_worker.behaviour.test_checkpoint_formats import logits_of
from tests.unit.gpu_worker.behaviour.test_families import PROMPT, USUAL

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
TEXT: dict[str, dict[str, Any]] = {
    "Qwen3VL": {"head_dim": 8},
    "Qwen3VLMoe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "Aria": {"head_dim": 8, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
}


def whole_model(name: str) -> Any:
    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}ForConditionalGeneration")
    text = {**USUAL, "rope_parameters": SECTIONS} | TEXT.get(name, {})
    config = kind.config_class(text_config=text, vision_config=VISION[name], tie_word_embeddings=False)
    return kind(config).eval()


@pytest.mark.parametrize("name", VISION)
def test_text_alone_is_computed_as_by_the_whole_model(tmp_path: Path, name: str) -> None:
    model = whole_model(name)
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    found = logits_of(tmp_path, ReferenceKernels())
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=5e-5)
    assert expected.std() > 0.02


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


@pytest.mark.parametrize("config", [{"architectures": ["LlamaForCausalLM"]}, {"architectures": "Llama"}, {}])
def test_the_configuration_of_a_language_model_alone(config: dict[str, Any]) -> None:
    assert language_part(config) is config
