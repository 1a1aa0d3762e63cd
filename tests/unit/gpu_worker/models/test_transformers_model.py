"""Models that transformers runs on paged memory give the results of transformers alone."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.errors import ModelError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.families import family_of
from gpu_worker.models.registry import load_model
from tests.support.logits import watch_logits
from tests.unit.gpu_worker.behaviour.test_families import LENGTH, PROMPT, random_model

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Cohere, norms of heads": ("CohereForCausalLM", {"logit_scale": 0.25, "use_qk_norm": True}),
    "Ministral, windows": (
        "MinistralForCausalLM",
        {
            "head_dim": 8,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "Nemotron": ("NemotronForCausalLM", {}),
    "OPT, norms behind": (
        "OPTForCausalLM",
        {
            "num_key_value_heads": 4,
            "ffn_dim": 48,
            "word_embed_proj_dim": 16,
            "do_layer_norm_before": False,
            "dropout": 0.0,
        },
    ),
    "StableLM, norms of heads": (
        "StableLmForCausalLM",
        {"hidden_size": 64, "partial_rotary_factor": 0.5, "qk_layernorm": True},
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_equals_transformers(make: Any, tmp_path: Path, name: str) -> None:
    model = random_model(*MODELS[name])
    model.save_pretrained(tmp_path)
    assert family_of(MODELS[name][0], json.loads((tmp_path / "config.json").read_text())) is None
    runner = make.runner(tmp_path, block_size=3, num_blocks=96, max_model_len=96)
    seen = watch_logits(runner)
    driver = make.Driver(runner)
    sequences = [driver.admit(slot, PROMPT[slot:]) for slot in range(3)]
    driver.mixed_steps(sequences, LENGTH)
    for sequence in sequences:
        known = sequence.tokens[: sequence.computed]
        with torch.inference_mode():
            expected = model(torch.tensor([known])).logits[0]
        logits = torch.stack([seen[sequence.slot, position] for position in range(LENGTH - 1)])
        torch.testing.assert_close(logits, expected, atol=5e-5, rtol=5e-5)
        assert sequence.tokens[1:] == known[1:] + expected[-1:].argmax(-1).tolist()


def load(directory: Path) -> Any:
    return load_model(directory, torch.device("cpu"), ReferenceKernels(), torch.float32)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        (
            "BloomForCausalLM",
            {"apply_residual_connection_post_layernorm": True},
            "not every layer of it has attention",
        ),
        ("MambaForCausalLM", {"state_size": 4}, "not every layer of it has attention"),
        ("FalconH1ForCausalLM", {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8}, "each other|run"),
    ],
)
def test_what_cannot_be_paged_is_refused(
    tmp_path: Path, architecture: str, changes: dict[str, Any], message: str
) -> None:
    random_model(architecture, changes).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        load(tmp_path)
    assert architecture in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_log_says_in_what_a_model_is_unlike_its_family(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random_model(*MODELS["StableLM, norms of heads"]).save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO, logger="gpu_worker"):
        load(tmp_path)
    assert "StableLmForCausalLM that is unlike others in qk_layernorm" in caplog.text


def test_code_of_a_model_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text("raise SystemExit('ran')")
    config = {"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="auto_map"):
        load(tmp_path)
