"""Embeddings equal what follows from transformers' hidden states, however a text is cut and laid out."""

import json
from array import array
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel

from gpu_worker.errors import ModelError
from gpu_worker.startup.load import load
from proto.sampling import greedy
from proto.sampling_pb2 import MEAN
from scheduler_svc.core.errors import RequestRefused
from scheduler_svc.core.request import Pooling, Request
from tests.support.closed_loop import ClosedLoop
from tests.support.dense import write_modules
from tests.unit.gpu_worker.behaviour.test_families import GPT, random_model
from tests.unit.gpu_worker.conftest import new_slot, plan

WAYS = [Pooling.MEAN, Pooling.LAST]
LENGTHS = [1, 3, 4, 5, 15, 16, 17, 60]
NOTHING_DRAWN = greedy()


def text(length: int) -> list[int]:
    return [(7 * place * place + 3 * place + 5) % 97 for place in range(length)]


def request(tokens: Iterable[int], **fields: Any) -> Request:
    return Request("r", array("i", tokens), sampling=NOTHING_DRAWN, **fields)


def expected(model: Any, tokens: list[int], pooling: Pooling) -> Tensor:
    with torch.inference_mode():
        states = model(torch.tensor([tokens])).last_hidden_state[0]
    return normalize(states.mean(0) if pooling is Pooling.MEAN else states[-1], dim=0)


@pytest.fixture(scope="module")
def hidden(tiny: SimpleNamespace) -> Any:
    """transformers' decoder, without the head."""
    return AutoModel.from_pretrained(tiny.directory).eval()


def check(found: list[Tensor], wanted: list[Tensor]) -> None:
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("pooling", WAYS)
@pytest.mark.parametrize("budget", [5, 16, 64])
def test_texts_of_all_lengths_beside_answers(
    make: SimpleNamespace, tiny: SimpleNamespace, hidden: Any, pooling: Pooling, budget: int
) -> None:
    loop = ClosedLoop(make.runner(tiny.directory, max_step_tokens=budget))
    answers = [loop.ask(request([seed, 9, 4])) for seed in range(2)]
    found = loop.embed(*(request(text(length), pooling=pooling) for length in LENGTHS))
    check(found, [expected(hidden, text(length), pooling) for length in LENGTHS])
    assert len(set(answers) & set(loop.embedded)) == 0


@pytest.mark.parametrize("pooling", WAYS)
def test_what_is_cached_changes_nothing(
    make: SimpleNamespace, tiny: SimpleNamespace, hidden: Any, pooling: Pooling
) -> None:
    loop = ClosedLoop(make.runner(tiny.directory))
    cold = loop.embed(request(text(30), pooling=pooling))
    loop.generate(request(text(21)), 3)
    loop.step_tokens.clear()
    warm = loop.embed(request(text(30), pooling=pooling), request(text(22), pooling=pooling))
    assert sum(loop.step_tokens) == (30 + 22 if pooling is Pooling.MEAN else 2 + 2)
    wanted = [expected(hidden, text(length), pooling) for length in (30, 30, 22)]
    check([*cold, *warm], wanted)


def test_answers_are_as_without(make: SimpleNamespace, tiny: SimpleNamespace) -> None:
    loop = ClosedLoop(make.runner(tiny.directory, max_step_tokens=6))
    for pooling in WAYS:
        loop.ask(request(text(40), pooling=pooling))
    prompt = text(11)
    assert loop.generate(request(prompt), 12).tolist() == make.expected(tiny.model, prompt, 12)


@pytest.mark.parametrize("pooling", WAYS)
@pytest.mark.parametrize(
    ("architecture", "changes"),
    [("GemmaForCausalLM", {"head_dim": 16}), ("CohereForCausalLM", {"logit_scale": 0.25})],
)
def test_other_families_and_models_of_transformers(
    make: SimpleNamespace, tmp_path: Path, architecture: str, changes: dict[str, Any], pooling: Pooling
) -> None:
    model = random_model(architecture, changes)
    model.save_pretrained(tmp_path)
    loop = ClosedLoop(make.runner(tmp_path, max_step_tokens=7))
    found = loop.embed(*(request(text(length), pooling=pooling) for length in (1, 9, 20)))
    check(found, [expected(model.base_model, text(length), pooling) for length in (1, 9, 20)])


def test_a_mean_with_a_hole_is_refused(make: SimpleNamespace, tiny: SimpleNamespace) -> None:
    runner = make.runner(tiny.directory)
    new = make.slot(2, text(8), [0, 1], pooling=MEAN)
    result = runner.execute(make.plan(1, [(2, 4, 4, 0)], new_slots=[new]))
    (error,) = result.errors
    assert "positions 4 to 7 of what is pooled" in error.message
    assert result.embeddings.rows == b""


@pytest.mark.parametrize(
    ("changes", "samples", "message"),
    [({"pooling": MEAN}, 1, "sampled"), ({"pooling": 7}, 0, "not known")],
)
def test_plans_that_contradict_themselves(
    make: SimpleNamespace, tiny: SimpleNamespace, changes: dict[str, Any], samples: int, message: str
) -> None:
    runner = make.runner(tiny.directory)
    new = make.slot(0, text(3), [0], **changes)
    (error,) = runner.execute(make.plan(1, [(0, 0, 3, samples)], new_slots=[new])).errors
    assert message in error.message


def test_states_that_are_not_finite_fail_alone(make: SimpleNamespace, tiny: SimpleNamespace) -> None:
    runner = make.runner(tiny.directory)
    normed = runner.model.normed
    runner.model.normed = lambda states: normed(states).index_fill(
        0, torch.tensor([0]).to(states.device), torch.nan
    )
    slots = [make.slot(slot, text(3), [slot], pooling=MEAN) for slot in range(2)]
    result = runner.execute(make.plan(1, [(0, 0, 3, 0), (1, 0, 3, 0)], new_slots=slots))
    assert [error.row for error in result.errors] == [0]
    assert make.unpack(result.embeddings.rows) == [1]


@pytest.fixture(params=["Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration"])
def headless(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A directory as of Qwen3-Embedding-8B, which has no head of its own, nor one that is tied, and
    transformers' model. Its language model may be within another."""
    model = random_model("Qwen3ForCausalLM", {"head_dim": 8, "tie_word_embeddings": False})
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    if request.param != "Qwen3ForCausalLM":
        tensors = {name.replace("model.", "model.language_model."): each for name, each in tensors.items()}
        config = json.loads((tmp_path / "config.json").read_text())
        whole = {"architectures": [request.param], "text_config": config, "tie_word_embeddings": False}
        (tmp_path / "config.json").write_text(json.dumps(whole))
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path, model.base_model


def test_a_model_without_a_head(settings: Any, headless: tuple[Path, Any]) -> None:
    """It embeds, and generates nothing."""
    directory, model = headless
    write_modules(directory, [("Pooling", {"pooling_mode": "lasttoken"}), ("Normalize", {})])
    loop = ClosedLoop(load(settings(model=directory, kernels="torch", dtype="float32", kv_memory=2**22)))
    found = loop.embed(*(request(text(length), pooling=Pooling.LAST) for length in LENGTHS))
    check(found, [expected(model, text(length), Pooling.LAST) for length in LENGTHS])
    _, outcome = loop.fleet.accept(request(text(3)))
    ((_, error),) = outcome.failed
    assert isinstance(error, RequestRefused)
    assert (error.param, str(error)) == ("model", "the model embeds texts, and generates none")
    assert loop.fleet.headless
    loop.runner.reset()
    (fault,) = loop.runner.execute(plan(1, [(0, 0, 3, 1)], new_slots=[new_slot(0, text(3), [0])])).errors
    assert fault.message == "the model embeds texts, and can do nothing else"


@pytest.mark.parametrize("architecture", ["MistralModel", "Gemma2Model", "GPT2Model"])
def test_architectures_without_a_head(settings: Any, tmp_path: Path, architecture: str) -> None:
    """As of E5 Mistral and BGE Gemma 2: also where config.json would tie a head. Names have no prefix."""
    model = random_model(architecture, GPT if architecture == "GPT2Model" else {"head_dim": 8})
    model.save_pretrained(tmp_path)
    loop = ClosedLoop(load(settings(model=tmp_path, kernels="torch", dtype="float32", kv_memory=2**22)))
    found = loop.embed(*(request(text(length), pooling=Pooling.LAST) for length in LENGTHS))
    check(found, [expected(model, text(length), Pooling.LAST) for length in LENGTHS])
    assert loop.fleet.headless


def test_a_head_that_is_missing(settings: Any, headless: tuple[Path, Any], tiny: SimpleNamespace) -> None:
    """Only a directory of sentence-transformers says that a model is for embeddings."""
    directory, _ = headless
    given = {"model": directory, "kernels": "torch", "dtype": "float32", "kv_memory": 2**22}
    with pytest.raises(ModelError, match=r"tensor lm_head\.weight is missing"):
        load(settings(**given))
    write_modules(directory, [("Pooling", {"pooling_mode": "lasttoken"})])
    with pytest.raises(ModelError, match="a model without a head generates nothing"):
        load(settings(**given, draft_model=tiny.directory))
    with pytest.raises(ModelError, match="a model without a head generates nothing"):
        load(settings(**given, speculation="mtp"))
