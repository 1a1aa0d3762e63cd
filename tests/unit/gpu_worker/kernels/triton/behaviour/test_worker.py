"""What every back end must do, done by this one: some of the worker's tests, in the interpreter."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.triton.kernels import KeptTriton
from tests.support import checkpoints
from tests.support.logits import watch_logits
from tests.unit.gpu_worker.behaviour.test_checkpoint_formats import AS_CODES, WIDE, logits_of
from tests.unit.gpu_worker.behaviour.test_families import MODELS as FAMILIES
from tests.unit.gpu_worker.behaviour.test_families import PROMPT, models, random_model  # noqa: F401
from tests.unit.gpu_worker.behaviour.test_greedy import (  # noqa: F401
    test_a_shared_prefix_is_not_computed_again,
    test_chunks_and_decodes_in_one_ragged_step,
    test_logits_at_every_position,
)
from tests.unit.gpu_worker.behaviour.test_prompt_logprobs import (  # noqa: F401
    test_several_samples_share_one_prompt,
)
from tests.unit.gpu_worker.models.test_transformers_model import MODELS

KINDS = {
    "Gemma 2": "soft caps, windows in some layers",
    "Gemma 3": "norms of queries and keys, a rotation for each kind of layer",
    "GPT-NeoX": "part of a head is rotated, layer norms, biases",
    "Qwen3 MoE": "experts",
    "BLOOM": "linear biases",
    "gpt-oss": "learned sinks, experts with biases and clamped gates",
    "DeepSeek V3, YaRN": "latent attention, groups of experts",
    "DeepSeek V3.2": "sparse attention",
}
"""Of layers, by a family that has them. TEST_INTERPRETED=1 goes through all families."""


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_layers(make, models, name: str) -> None:  # noqa: F811
    found = models(name)
    check(make, found.directory, found.logits)


def test_layers_of_different_sizes(make, tmp_path: Path) -> None:
    model = random_model(*MODELS["Gemma 4, keys of earlier layers"])
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        check(make, tmp_path, lambda *tokens: model(torch.tensor([tokens])).logits[0])


def check(make, directory: Path, logits_of: Callable[..., torch.Tensor]) -> None:
    """Logits of a prompt in two chunks, and of two tokens after it."""
    runner = make.runner(directory)
    seen = watch_logits(runner)
    driver = make.Driver(runner)
    sequence = driver.admit(0, PROMPT)
    driver.step((sequence, 14))
    for count in (len(PROMPT) - 14, 1, 1):
        driver.step((sequence, count))
    logits = torch.stack([seen[0, position] for position in range(sequence.computed)])
    torch.testing.assert_close(logits, logits_of(*sequence.tokens[:-1]), atol=5e-5, rtol=5e-5)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp4, stacked", "fp8, squares", "mxfp8-quantized"])
def test_weights_of_a_checkpoint_stay_as_they_are(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, encoder, config = AS_CODES[name]
    architecture, changes = FAMILIES[model]
    random_model(architecture, changes | WIDE).save_pretrained(tmp_path / "source")
    write = checkpoints.write_stacked if model == "gpt-oss" else checkpoints.write
    stored, meant = write(tmp_path / "source", tmp_path, encoder, config)
    caplog.set_level(logging.INFO, logger="gpu_worker")
    found = logits_of(stored, KeptTriton(torch.device("cpu")))
    assert "100 % stay as they are" in caplog.text
    expected = logits_of(meant, ReferenceKernels())
    assert (found - expected).norm() < 1e-5 * expected.norm()
