"""Layers after the pooling: embeddings are those of transformers' hidden states and torch.nn.Linear."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.startup.load import load
from gpu_worker.step.runner import Runner
from proto.sampling_pb2 import ALL, LAST
from scheduler_svc.core.errors import RequestRefused
from scheduler_svc.core.request import Pooling
from tests.support.closed_loop import ClosedLoop
from tests.support.dense import ACTIVATIONS, IDENTITY, TANH, dense, write
from tests.unit.gpu_worker.behaviour.test_embedding import request, text
from tests.unit.gpu_worker.behaviour.test_families import random_model
from tests.unit.gpu_worker.conftest import new_slot, plan, unpack
from tests.unit.gpu_worker.models.test_encoder import saved

GEMMA = [dense(32, 80), dense(80, 24)]
"""As of EmbeddingGemma: first wider, then narrower than hidden states."""
LABSE = [dense(32, 32, TANH, True)]
LENGTHS = [1, 3, 17, 30]


def decoder(directory: Path) -> Any:
    model = random_model("LlamaForCausalLM", {"hidden_size": 32})
    model.save_pretrained(directory)
    return model.base_model


def encoder(directory: Path) -> Any:
    return saved(directory, "Bert")


KINDS = {"decoder": decoder, "encoder": encoder}


@pytest.fixture
def runner(settings: Any, tmp_path: Path) -> Any:
    """Makes a runner as a worker does at its start."""

    def make(**changes: Any) -> Runner:
        sizes = {"block_size": 4, "max_slots": 4, "kv_memory": 2**22, "dtype": "float32"}
        return load(settings(model=tmp_path, kernels="torch", **{**sizes, **changes}))

    return make


def pooled(model: Any, tokens: list[int], pooling: Pooling) -> Tensor:
    with torch.inference_mode():
        states = model(torch.tensor([tokens])).last_hidden_state[0]
    return {Pooling.MEAN: states.mean(0), Pooling.LAST: states[-1], Pooling.CLS: states[0]}[pooling]


def check(found: list[Tensor], wanted: list[Tensor]) -> None:
    torch.testing.assert_close(torch.stack(found), torch.stack(wanted), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layers", [GEMMA, LABSE], ids=["two layers", "tanh"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [5, 64])
def test_texts_of_all_kinds_in_one_batch(
    runner: Any, tmp_path: Path, kind: str, layers: Any, budget: int
) -> None:
    """With the small budget a decoder's text takes several steps."""
    model, embedding = KINDS[kind](tmp_path), write(tmp_path, layers)
    loop = ClosedLoop(runner(step_tokens=budget))
    ways = [Pooling.MEAN, Pooling.LAST, *([Pooling.CLS] if kind == "encoder" else [])]
    asked = [(length, way) for length in LENGTHS for way in ways]
    if kind == "decoder":
        loop.ask(request([5, 9, 4]))  # an answer beside them
    found = loop.embed(*(request(text(length), pooling=way) for length, way in asked))
    check(found, [embedding(pooled(model, text(length), way)) for length, way in asked])
    assert len(found[0]) == loop.runner.limits.embedding_size == layers[-1]["out_features"]


@pytest.mark.parametrize("layers", [[], GEMMA, LABSE, [dense(32, 8)]], ids=["none", "two", "tanh", "colbert"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [5, 64])
def test_vectors_of_each_token_beside_others(
    runner: Any, tmp_path: Path, kind: str, layers: Any, budget: int
) -> None:
    """In one batch with means, and answers of a decoder, whose texts are cut."""
    model = KINDS[kind](tmp_path)
    embedding = write(tmp_path, layers, None if layers and layers[0]["out_features"] == 8 else "mean")
    loop = ClosedLoop(runner(step_tokens=budget))
    if kind == "decoder":
        loop.ask(request([5, 9, 4]))
        loop.embed(request(text(30), pooling=Pooling.LAST))  # its cached blocks are of no use
    ways = (Pooling.ALL, Pooling.MEAN, Pooling.ALL)
    asked = [(length, way) for length in LENGTHS for way in ways]
    found = loop.embed(*(request(text(length), pooling=way) for length, way in asked))
    size = loop.runner.limits.embedding_size
    for vectors, (length, way) in zip(found, asked, strict=True):
        with torch.inference_mode():
            states = model(torch.tensor([text(length)])).last_hidden_state[0]
        if way is Pooling.MEAN:
            states = states.mean(0, keepdim=True)
        torch.testing.assert_close(vectors.view(-1, size), embedding(states), atol=1e-5, rtol=1e-4)


def test_a_text_with_a_vector_that_is_not_finite_fails_alone(runner: Any, tmp_path: Path) -> None:
    decoder(tmp_path)
    worker = runner()
    normed = worker.model.normed

    def spoiled(states: Tensor) -> Tensor:
        found = normed(states)
        found[1:2] = torch.nan  # the text that is pooled has one state alone
        return found

    worker.model.normed = spoiled
    kinds = (ALL, ALL, LAST)
    slots = [new_slot(slot, text(3), [slot], pooling=kind) for slot, kind in enumerate(kinds)]
    result = worker.execute(plan(1, [(slot, 0, 3, 0) for slot in range(3)], new_slots=slots))
    assert [error.row for error in result.errors] == [0]
    assert (unpack(result.embeddings.rows), unpack(result.embeddings.counts)) == ([1, 2], [3, 1])
    assert len(result.embeddings.vectors) == 4 * 4 * 32


def test_vectors_of_each_token_with_a_hole_are_refused(runner: Any, tmp_path: Path) -> None:
    decoder(tmp_path)
    new = new_slot(2, text(8), [0, 1], pooling=ALL)
    (error,) = runner().execute(plan(1, [(2, 4, 4, 0)], new_slots=[new])).errors
    assert "positions 4 to 7 of what is pooled" in error.message


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [32, 12])
def test_activations_and_residuals(runner: Any, tmp_path: Path, activation: str, size: int) -> None:
    model = encoder(tmp_path)
    embedding = write(tmp_path, [dense(32, size, activation, True, use_residual=True)])
    (found,) = ClosedLoop(runner()).embed(request(text(9), pooling=Pooling.MEAN))
    check([found], [embedding(pooled(model, text(9), Pooling.MEAN))])


def test_layers_stay_in_float32(runner: Any, tmp_path: Path) -> None:
    """Whatever type the model has: the layers make of its own pooled states what torch.nn.Linear does."""
    encoder(tmp_path)
    (plain,) = ClosedLoop(runner(dtype="bfloat16")).embed(request(text(9), pooling=Pooling.CLS))
    embedding = write(tmp_path, [dense(32, 24, IDENTITY)], "cls")
    (found,) = ClosedLoop(runner(dtype="bfloat16")).embed(request(text(9), pooling=Pooling.CLS))
    check([found], [embedding(plain)])  # without a bias the length of what they are given does not matter


def test_dimensions_are_those_of_the_embedding(runner: Any, tmp_path: Path) -> None:
    encoder(tmp_path)
    write(tmp_path, GEMMA)
    loop = ClosedLoop(runner())
    loop.ask(request(text(3), pooling=Pooling.MEAN, dimensions=24))
    _, outcome = loop.fleet.accept(request(text(3), pooling=Pooling.MEAN, dimensions=25))
    ((_, error),) = outcome.failed
    assert isinstance(error, RequestRefused)
    assert "have 24 dimensions, not 25" in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_there_are_not_leave_hidden_states(runner: Any, tmp_path: Path, kind: str) -> None:
    """Embeddings of the model's own kind are refused before; a request that names its pooling gets it."""
    model = KINDS[kind](tmp_path)
    write(tmp_path, GEMMA)
    path = tmp_path / "2_Dense" / "config.json"
    path.write_text(json.dumps(dense(32, 80, "torch.nn.modules.activation.PReLU")))
    (found,) = ClosedLoop(runner()).embed(request(text(9), pooling=Pooling.MEAN))
    check([found], [torch.nn.functional.normalize(pooled(model, text(9), Pooling.MEAN), dim=0)])


def test_a_classifier_has_no_layers(runner: Any, tmp_path: Path) -> None:
    saved(tmp_path, "Bert", "ForSequenceClassification", num_labels=3)
    write(tmp_path, GEMMA)
    (found,) = ClosedLoop(runner()).embed(request(text(9), pooling=Pooling.CLASSIFY))
    assert len(found) == 3


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def with_weights(**tensors: Tensor) -> Any:
    named = {name.replace("_", "."): tensor for name, tensor in tensors.items()}
    return lambda folder: save_file(named, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_weights, r"2_Dense: weights only as pickles \(pytorch_model.bin\), which are never loaded"),
        (with_weights(weight=torch.zeros(80, 32)), "2_Dense: tensor linear.weight is missing"),
        (
            with_weights(linear_weight=torch.zeros(32, 80)),
            r"2_Dense: tensor linear.weight has shape \[32, 80\]",
        ),
        (
            with_weights(linear_weight=torch.zeros(80, 32), linear_bias=torch.zeros(80)),
            "2_Dense/config.json does not account for tensor linear.bias",
        ),
        (
            lambda folder: (folder / "config.json").write_text(json.dumps(dense(48, 80))),
            "2_Dense/config.json: in_features: 48 is not 32",
        ),
        (
            lambda folder: (folder / "config.json").write_text(json.dumps(dense(32, 81))),
            r"tensor linear.weight has shape \[80, 32\], config.json means \[81, 32\]",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "2_Dense/config.json is not JSON"),
    ],
)
def test_directories_that_cannot_be_served(runner: Any, tmp_path: Path, change: Any, message: str) -> None:
    encoder(tmp_path)
    write(tmp_path, GEMMA)
    change(tmp_path / "2_Dense")
    with pytest.raises(ModelError, match=message) as caught:
        runner()
    assert "\n" not in str(caught.value)
