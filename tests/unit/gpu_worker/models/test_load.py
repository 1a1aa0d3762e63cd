"""The type that a decoder computes in."""

import logging
from pathlib import Path

import pytest
import torch
import transformers

from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.load import load_model

SIZES = {
    **{"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0},
}


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
    with caplog.at_level(logging.INFO, "gpu_worker.models.load"):
        model = load_model(tmp_path, torch.device("cpu"), ReferenceKernels(), asked)
    assert model.dtype == expected
    lines = [(each.levelno, each.getMessage()) for each in caplog.records if "beyond" in each.getMessage()]
    assert [level for level, _ in lines] == ([told] if told else [])
    assert all("activations of G" in line and "bfloat16" in line for _, line in lines)
