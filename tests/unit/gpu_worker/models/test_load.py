"""The type that a decoder computes in, and models in MLX's form."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.formats.format import IN_MLX_FORM
from gpu_worker.models.load import load_model

SIZES = {
    **{"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0},
}
KEYS = ("quantization", "quantization_config")
FOUR_BITS = {"group_size": 64, "bits": 4, "mode": "affine"}
NORM = "model.layers.0.input_layernorm.weight"


@pytest.mark.parametrize(
    ("kind", "asked", "expected", "told"),
    [
        ("gemma2", None, torch.bfloat16, logging.INFO),
        ("gemma3_text", None, torch.bfloat16, logging.INFO),
        ("glm4", None, torch.bfloat16, logging.INFO),
        ("gemma2", torch.float16, torch.float16, logging.WARNING),
        ("gemma2", torch.float32, torch.float32, None),
        ("llama", None, torch.float16, None),
        ("llama", torch.float16, torch.float16, None),
    ],
)
def test_models_whose_activations_float16_does_not_hold(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    asked: torch.dtype | None,
    expected: torch.dtype,
    told: int | None,
) -> None:
    config = transformers.AutoConfig.for_model(kind, **SIZES)
    transformers.AutoModelForCausalLM.from_config(config).half().save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO, "gpu_worker.models.float16"):
        model = load_model(tmp_path, torch.device("cpu"), ReferenceKernels(), asked)
    assert model.dtype == expected
    lines = [(each.levelno, each.getMessage()) for each in caplog.records if "beyond" in each.getMessage()]
    assert [level for level, _ in lines] == ([told] if told else [])
    assert all("activations of G" in line and "bfloat16" in line for _, line in lines)


def test_encoders_whose_activations_float16_does_not_hold(tmp_path: Path) -> None:
    """As EmbeddingGemma's."""
    config = transformers.Gemma3TextConfig(**SIZES, use_bidirectional_attention=True)
    transformers.Gemma3TextModel(config).half().save_pretrained(tmp_path)
    assert load_model(tmp_path, torch.device("cpu"), ReferenceKernels()).dtype == torch.bfloat16


def in_mlx_form(directory: Path, kind: str, left_out: str = "") -> None:
    config = transformers.AutoConfig.for_model(kind, **SIZES)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    path = directory / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if name != left_out}
    save_file(tensors, path, {"format": "mlx"})


@pytest.mark.parametrize(
    "quantized",
    [{"quantization": FOUR_BITS}, {"quantization_config": FOUR_BITS}, dict.fromkeys(KEYS, FOUR_BITS)],
)
def test_quantized_models_of_mlx(tmp_path: Path, quantized: dict[str, Any]) -> None:
    in_mlx_form(tmp_path, "llama")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | quantized))
    with pytest.raises(ModelError, match=rf"config\.json: quantization.*: {IN_MLX_FORM}$"):
        load_model(tmp_path, torch.device("cpu"), ReferenceKernels())


@pytest.mark.parametrize(
    ("kind", "left_out", "message"),
    [
        ("qwen3_5_text", "", f"^[^ ]*: {IN_MLX_FORM}$"),
        ("qwen3_next", "", f"^[^ ]*: {IN_MLX_FORM}$"),
        ("llama", NORM, rf"{NORM} is missing from the checkpoint \({IN_MLX_FORM}\)$"),
    ],
)
def test_plain_models_of_mlx(tmp_path: Path, kind: str, left_out: str, message: str) -> None:
    """Of Qwen 3.5 and Qwen3-Next they have norms with 1 + weight, under the original's names."""
    in_mlx_form(tmp_path, kind, left_out)
    with pytest.raises(ModelError, match=message):
        load_model(tmp_path, torch.device("cpu"), ReferenceKernels())


def test_plain_models_of_mlx_with_the_original_s_tensors(tmp_path: Path) -> None:
    in_mlx_form(tmp_path, "llama")
    load_model(tmp_path, torch.device("cpu"), ReferenceKernels())
