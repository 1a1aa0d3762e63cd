"""Each causal language model of the installed transformers is served as transformers computes, or refused.

One tiny random model of each kind of outcome is tried. `make families` tries all models, which takes minutes.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from gpu_worker.errors import WorkerError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from tests.support.logits import watch_logits
from tests.support.tiny_models import ROUND, tiny_model
from tests.unit.gpu_worker.behaviour.test_families import LENGTH, PROMPT, differing
from tests.unit.gpu_worker.conftest import makers

SERVED = ("AfmoeForCausalLM", "Gemma3nForCausalLM")
EXACT = (
    *("AfmoeForCausalLM", "BioGptForCausalLM", "Gemma3nForCausalLM", "Gemma4ForCausalLM"),
    *("GraniteMoeForCausalLM", "Llama4ForCausalLM", "MiniMaxM3VLForCausalLM", "SolarOpenForCausalLM"),
)
"""Models with routers, gates, embeddings that the head shares, and activations of many kinds."""
REFUSED = {
    "HYV4ForCausalLM": "its indexers select the tokens to attend to",
    "DogeForCausalLM": "a mask of its own",
    "InklingForCausalLM": "position_bias",
    "MambaForCausalLM": "not every layer of it has attention",
}

ALL = [name for name in dir(transformers) if name.endswith("ForCausalLM") and not name.startswith("Auto")]
HUGE = {"FuyuForCausalLM", "BltForCausalLM"}
"""A part of them cannot be made small."""


def verdict(architecture: str, directory: Path) -> str:
    """Why the model is refused; empty if it is served. Raises `AssertionError` if it is served wrongly."""
    model = tiny_model(architecture)
    model.save_pretrained(directory)
    make = makers(ReferenceKernels())
    try:
        runner = make.runner(directory, block_size=3, num_blocks=99, max_model_len=96)
    except WorkerError as error:
        return str(error)
    seen = watch_logits(runner)
    driver = make.Driver(runner)
    sequences = [driver.admit(slot, PROMPT[slot:]) for slot in range(3)]
    driver.mixed_steps(sequences, LENGTH)
    for sequence in sequences:
        known = sequence.tokens[: sequence.computed]
        with torch.inference_mode():
            expected = model(torch.tensor([known]), use_cache=False).logits[0].float()
        logits = torch.stack([seen[sequence.slot, position] for position in range(len(known))])
        torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)
        assert (
            sequence.tokens[len(PROMPT) - sequence.slot :]
            == expected[len(PROMPT) - sequence.slot - 1 :].argmax(-1).tolist()
        )
    return ""


@pytest.mark.parametrize("architecture", SERVED)
def test_what_is_served_is_what_transformers_computes(architecture: str, tmp_path: Path) -> None:
    assert verdict(architecture, tmp_path) == ""


@pytest.mark.parametrize("architecture", EXACT)
def test_a_token_has_the_same_bits_whatever_runs_beside_it(architecture: str, tmp_path: Path) -> None:
    tiny_model(architecture, sizes=ROUND).save_pretrained(tmp_path)
    assert not differing(tmp_path, torch.float32)
    assert not differing(tmp_path, torch.bfloat16)


@pytest.mark.parametrize("architecture", REFUSED)
def test_what_cannot_be_served_is_refused_with_one_line(architecture: str, tmp_path: Path) -> None:
    why = verdict(architecture, tmp_path)
    assert architecture in why
    assert REFUSED[architecture] in why
    assert "\n" not in why


@pytest.mark.parametrize("architecture", ALL if os.environ.get("TEST_ALL_MODELS") else [])
def test_all_models(architecture: str, tmp_path: Path, record_property: Any) -> None:
    if architecture in HUGE:
        pytest.skip("it cannot be made small")
    try:
        with torch.inference_mode():
            tiny_model(architecture)(torch.tensor([PROMPT]), use_cache=False)
    except Exception as error:
        pytest.skip(f"transformers makes no model of these sizes: {error}")
    why = verdict(architecture, tmp_path)
    record_property("refused", why)
    assert "\n" not in why
