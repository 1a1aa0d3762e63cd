"""Logits of labels are those of transformers' classifiers, however a text is cut and laid out."""

import json
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Gemma3Config, Gemma3ForSequenceClassification

from gpu_worker.errors import ModelError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.startup.load import load
from gpu_worker.startup.warmup import full_step
from proto.sampling import greedy
from proto.sampling_pb2 import CLASSIFY, MEAN, NO_POOLING
from scheduler_svc.core.request import Pooling, Request
from tests.support.closed_loop import ClosedLoop
from tests.support.ranks import Together
from tests.unit.gpu_worker.behaviour.test_families import USUAL, random_model
from tests.unit.gpu_worker.conftest import make_runner, new_slot, plan

NATIVE = {
    "llama": ("LlamaForSequenceClassification", {"tie_word_embeddings": True}),
    "gemma2": ("Gemma2ForSequenceClassification", {"head_dim": 16, "sliding_window": 16}),
}
OF_TRANSFORMERS = ("HeliumForSequenceClassification", {"head_dim": 8})
LENGTHS = [1, 4, 17, 50]
LABELS = [1, 3]


def text(length: int) -> list[int]:
    return [(7 * place * place + 3 * place + 5) % 97 for place in range(length)]


def request(length: int, pooling: Pooling = Pooling.CLASSIFY) -> Request:
    return Request("r", array("i", text(length)), sampling=greedy(), pooling=pooling)


def classifier(architecture: str, changes: dict[str, Any], labels: int, directory: Path) -> Any:
    """A random classifier of transformers, saved to a directory."""
    model = random_model(architecture, changes | {"num_labels": labels, "pad_token_id": None})
    model.save_pretrained(directory)
    return model


def expected(model: Any, length: int) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(torch.tensor([text(length)])).logits[0]
    return found


def check(model: Any, found: list[Tensor], lengths: list[int]) -> None:
    wanted = torch.stack([expected(model, length) for length in lengths])
    torch.testing.assert_close(torch.stack(found), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("family", NATIVE)
def test_texts_in_chunks_beside_each_other(
    make: SimpleNamespace, tmp_path: Path, family: str, labels: int
) -> None:
    model = classifier(*NATIVE[family], labels, tmp_path)
    loop = ClosedLoop(make.runner(tmp_path, max_step_tokens=7))
    check(model, loop.embed(*map(request, LENGTHS)), LENGTHS)


def test_what_is_cached_is_not_computed_again(make: SimpleNamespace, tmp_path: Path) -> None:
    model = classifier(*NATIVE["llama"], 3, tmp_path)
    loop = ClosedLoop(make.runner(tmp_path))
    cold = loop.embed(request(30))
    loop.step_tokens.clear()
    warm = loop.embed(request(30), request(22))
    assert sum(loop.step_tokens) == 2 + 2
    check(model, [*cold, *warm], [30, 30, 22])


@pytest.mark.parametrize("labels", LABELS)
def test_a_classifier_of_transformers(make: SimpleNamespace, tmp_path: Path, labels: int) -> None:
    architecture, changes = OF_TRANSFORMERS
    model = classifier(architecture, changes, labels, tmp_path)
    loop = ClosedLoop(make.runner(tmp_path, max_step_tokens=7))
    assert loop.runner.model.config.architecture == architecture
    check(model, loop.embed(*map(request, LENGTHS)), LENGTHS)


def test_a_classifier_within_a_vision_language_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text_config = USUAL | {"head_dim": 8, "sliding_window": 9}
    vision = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"patch_size": 2, "image_size": 8}
    config = Gemma3Config(text_config=text_config, vision_config=vision, num_labels=3)
    config._attn_implementation = "eager"
    model = Gemma3ForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    loop = ClosedLoop(make_runner(tmp_path, ReferenceKernels(), max_step_tokens=7))
    check(model, loop.embed(*map(request, LENGTHS)), LENGTHS)


def test_the_trial_knows_another_head(
    make: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier(*OF_TRANSFORMERS, 3, tmp_path)
    scores = "gpu_worker.models.transformers_model.TransformersModel.scores"
    monkeypatch.setattr(scores, lambda self, hidden: hidden.mean(1, keepdim=True).expand(-1, 3).float())
    with pytest.raises(ModelError, match="something else than its own code"):
        make.runner(tmp_path)


@pytest.mark.parametrize(
    ("pooling", "sampling", "samples", "message"),
    [
        (NO_POOLING, greedy(), 1, "classifies texts"),
        (MEAN, greedy(), 0, "classifies texts"),
        (CLASSIFY, greedy(prompt_logprobs=0), 0, "classifies texts"),
        (CLASSIFY, greedy(), 1, "sampled"),
    ],
)
def test_plans_for_other_models(
    make: SimpleNamespace, tmp_path: Path, pooling: Any, sampling: Any, samples: int, message: str
) -> None:
    classifier(*NATIVE["llama"], 3, tmp_path)
    runner = make.runner(tmp_path)
    new = make.slot(0, text(3), [0], pooling=pooling, sampling=sampling)
    (error,) = runner.execute(make.plan(1, [(0, 0, 3, samples)], new_slots=[new])).errors
    assert message in error.message


def test_a_language_model_does_not_classify(make: SimpleNamespace, tiny: SimpleNamespace) -> None:
    new = make.slot(0, text(3), [0], pooling=CLASSIFY)
    (error,) = make.runner(tiny.directory).execute(make.plan(1, [(0, 0, 3, 0)], new_slots=[new])).errors
    assert error.message == "the model has no classification head"


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_the_head_of_a_quantized_model_stays_in_float32(
    settings: Any, tmp_path: Path, quantization: str
) -> None:
    """A whole start: what runs before the first request samples nothing."""
    model = classifier(*NATIVE["llama"], 3, tmp_path)
    given = {"quantization": quantization, "host_memory": 2**20, "kv_memory": 2**20, "step_tokens": 16}
    loop = ClosedLoop(load(settings(model=tmp_path, **given)))
    found = torch.stack(loop.embed(*map(request, LENGTHS)))
    wanted = torch.stack([expected(model, length) for length in LENGTHS])
    assert 1e-4 < (found - wanted).norm() / wanted.norm() < 0.3
    hidden = torch.randn(5, 32)
    assert loop.runner.model.scores(hidden).equal(model.score(loop.runner.model.normed(hidden)))


@pytest.mark.parametrize(
    "given", [{"kv_dtype": "fp8", "kernels": "torch"}, {"kernels": "torch", "dtype": "bfloat16"}]
)
def test_a_start_with_other_formats(settings: Any, tmp_path: Path, given: dict[str, Any]) -> None:
    classifier(*NATIVE["llama"], 3, tmp_path)
    runner = load(settings(model=tmp_path, kv_memory=2**20, **given))
    for cache in runner.caches:
        for pages in cache.tensors():
            pages.zero_()  # the step reads what it has not written
    result = runner.execute(full_step(runner.limits))
    assert not result.errors
    assert len(result.embeddings.vectors) == 4 * 3 * runner.limits.max_slots


def test_ranks_equal_one(tmp_path: Path) -> None:
    model = classifier(*NATIVE["llama"], 3, tmp_path)
    pair = Together(2, lambda ranks: make_runner(tmp_path, ReferenceKernels(), ranks=ranks))
    slots = [
        new_slot(slot, text(length), range(16 * slot, 16 * slot + 13), pooling=CLASSIFY)
        for slot, length in enumerate(LENGTHS)
    ]
    pair.execute(
        plan(1, [(slot, 0, max(1, length - 3), 0) for slot, length in enumerate(LENGTHS)], new_slots=slots)
    )
    result = pair.execute(
        plan(2, [(slot, length - 3, 3, 0) for slot, length in enumerate(LENGTHS) if length > 3])
    )
    found = torch.frombuffer(bytearray(result.embeddings.vectors), dtype=torch.float32).view(-1, 3)
    check(model, list(found), LENGTHS[1:])


def test_a_draft_model_is_of_no_use(settings: Any, tmp_path: Path, tiny: SimpleNamespace) -> None:
    classifier(*NATIVE["llama"], 3, tmp_path)
    with pytest.raises(ModelError, match="a classifier generates nothing"):
        load(settings(model=tmp_path, draft_model=tiny.directory))


SCORING = {
    "tied": ("LlamaForCausalLM", {"tie_word_embeddings": True}),
    "caps logits": (
        "Gemma2ForCausalLM",
        {"head_dim": 16, "sliding_window": 16, "final_logit_softcapping": 0.5},
    ),
    "of transformers": ("HeliumForCausalLM", {"head_dim": 8}),
}


def reranker(case: str, tokens: dict[str, int | None], directory: Path) -> Any:
    """A random language model of transformers, saved to a directory, whose tokens score a text."""
    architecture, changes = SCORING[case]
    model = random_model(architecture, changes)
    model.save_pretrained(directory)
    modules = [{"type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore", "path": "1"}]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1").mkdir()
    (directory / "1" / "config.json").write_text(json.dumps(tokens))
    return model


@pytest.mark.parametrize("no", [None, 5])
@pytest.mark.parametrize("case", SCORING)
def test_tokens_score_a_text(make: SimpleNamespace, tmp_path: Path, case: str, no: int | None) -> None:
    model = reranker(case, {"true_token_id": 90, "false_token_id": no}, tmp_path)
    loop = ClosedLoop(make.runner(tmp_path, max_step_tokens=7))
    logits = torch.stack([expected(model, length)[-1] for length in LENGTHS])
    wanted = logits[:, [90]] if no is None else logits[:, [90]] - logits[:, [no]]
    found = torch.stack(loop.embed(*map(request, LENGTHS)))
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


def test_ranks_agree_on_the_score_of_tokens(tmp_path: Path) -> None:
    model = reranker("tied", {"true_token_id": 90, "false_token_id": 5}, tmp_path)
    pair = Together(2, lambda ranks: make_runner(tmp_path, ReferenceKernels(), ranks=ranks))
    slots = [new_slot(0, text(17), range(13), pooling=CLASSIFY)]
    result = pair.execute(plan(1, [(0, 0, 17, 0)], new_slots=slots))
    found = torch.frombuffer(bytearray(result.embeddings.vectors), dtype=torch.float32)
    last = expected(model, 17)[-1]
    torch.testing.assert_close(found[0], last[90] - last[5], atol=1e-5, rtol=1e-4)


def test_a_whole_start_of_a_model_whose_tokens_score(settings: Any, tmp_path: Path) -> None:
    reranker("tied", {"true_token_id": 90}, tmp_path)
    runner = load(settings(model=tmp_path, kv_memory=2**20, quantization="int8", step_tokens=16))
    assert runner.limits.num_labels == 1


def test_a_token_that_the_model_does_not_have(make: SimpleNamespace, tmp_path: Path) -> None:
    reranker("tied", {"true_token_id": 97}, tmp_path)
    with pytest.raises(ModelError, match=r"config\.json: vocab_size: 97 is too small"):
        make.runner(tmp_path)
