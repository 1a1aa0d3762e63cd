"""Heads that are the embedding, and heads of their own."""

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.config import read_config
from gpu_worker.models.load import load_model
from tests.support.checkpoints import int8, write
from tests.unit.gpu_worker.behaviour.test_checkpoint_formats import compressed, logits_of
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, MODELS, PROMPT, random_model
from tests.unit.gpu_worker.conftest import back_end
from tests.unit.gpu_worker.models.test_wrapped import whole_model

HEAD = "lm_head.weight"


def save(directory: Path, name: str, head: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A model whose config.json ties the head, with a head that is made from the embedding."""
    architecture, changes = MODELS[name]
    random_model(architecture, changes | {"tie_word_embeddings": True}).save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    embedding = next(tensor for key, tensor in tensors.items() if ".embed" in key)
    save_file(tensors | {HEAD: head(embedding)}, directory / "model.safetensors", metadata={"format": "pt"})


def expected(directory: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        return model(torch.tensor([PROMPT])).logits[0]


@pytest.mark.parametrize("name", ["Llama", "Gemma 3", "Nemotron H"])
def test_a_head_of_its_own_is_used_although_it_is_tied(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As transformers uses it: of a model whose head alone was trained on, say."""
    save(tmp_path, name, lambda embedding: 0.2 * torch.randn_like(embedding))
    caplog.set_level(logging.INFO, logger="gpu_worker")
    found = logits_of(tmp_path, ReferenceKernels())
    torch.testing.assert_close(found, expected(tmp_path), atol=5e-5, rtol=5e-5)
    assert "it has a head of its own, although config.json ties it" in caplog.text


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("name", ["Phi", "GPT-J"])
def test_a_tied_head_has_its_bias(tmp_path: Path, name: str, biased: bool) -> None:
    """If the checkpoint has it."""
    architecture, changes = (MODELS | ALIKE)[name]
    model = random_model(architecture, changes | {"tie_word_embeddings": True})
    model.save_pretrained(tmp_path)
    if not biased:
        torch.nn.init.zeros_(model.lm_head.bias)
        tensors = load_file(tmp_path / "model.safetensors")
        del tensors["lm_head.bias"]
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with torch.inference_mode():
        expected = model(torch.tensor([PROMPT])).logits[0]
    for kernels in (ReferenceKernels(), back_end(build.supported()[0])):
        torch.testing.assert_close(logits_of(tmp_path, kernels), expected, atol=5e-5, rtol=5e-5)


@pytest.mark.parametrize("left", [r"embed_tokens|mlp\.gate\.", r"lm_head|mlp\.gate\."])
@pytest.mark.parametrize("name", ["Llama", "Qwen3VLMoe"])
def test_a_quantized_head_is_used_although_it_is_tied(
    tmp_path: Path, name: str, left: str, caplog: pytest.LogCaptureFixture
) -> None:
    """So is a plain one beside a quantized embedding. In Qwen3-VL with experts the language model's own key
    ties them, and the whole model's key, which wins, may be missing."""
    (whole := tmp_path / "whole").mkdir()
    if name == "Llama":
        save(whole, name, lambda embedding: embedding + 0.05 * torch.randn_like(embedding))
    else:
        whole_model(name).save_pretrained(whole)
        config = json.loads((whole / "config.json").read_text())
        del config["tie_word_embeddings"]
        config["text_config"]["tie_word_embeddings"] = True
        (whole / "config.json").write_text(json.dumps(config))
    form = compressed("int-quantized", strategy="channel")
    stored, meant = write(whole, tmp_path, int8(), form, re.compile(left))
    assert read_config(stored).tie_word_embeddings
    caplog.set_level(logging.INFO, logger="gpu_worker")
    found, expected = (logits_of(each, ReferenceKernels()) for each in (stored, meant))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert caplog.text.count("it has a head of its own") == 2


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_copy_of_the_embedding_is_left(
    tmp_path: Path, kind: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever its type is."""
    save(tmp_path, "Llama", lambda embedding: embedding.to(kind, copy=True))
    caplog.set_level(logging.INFO, logger="gpu_worker")
    model = load_model(tmp_path, torch.device("cpu"), ReferenceKernels(), torch.float32)
    assert model.config.tie_word_embeddings  # type: ignore[attr-defined]
    assert "a head of its own" not in caplog.text
