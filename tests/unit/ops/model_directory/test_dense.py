"""Layers after the pooling, as a model directory names them."""

import json
from pathlib import Path
from typing import Any

import pytest

from ops.model_directory.dense import Dense, dense_in
from ops.model_directory.files import FileError
from tests.support.dense import ACTIVATIONS, IDENTITY, TANH, dense, write_modules

POOLING = ("Pooling", {"pooling_mode": "mean"})
NORMALIZE = ("Normalize", {})


def test_layers_in_order(tmp_path: Path) -> None:
    """As EmbeddingGemma has them."""
    write_modules(
        tmp_path, [POOLING, ("Dense", dense(768, 3072)), ("Dense", dense(3072, 768, TANH, True)), NORMALIZE]
    )
    layers, unknown = dense_in(tmp_path)
    assert unknown == ()
    assert layers == (
        Dense(tmp_path / "2_Dense", 768, 3072, False, "Identity", False),
        Dense(tmp_path / "3_Dense", 3072, 768, True, "Tanh", False),
    )


def test_what_a_configuration_leaves_out(tmp_path: Path) -> None:
    given = {"in_features": 8, "out_features": 4, "module_input_name": "sentence_embedding"}
    write_modules(tmp_path, [POOLING, ("Dense", given)])
    assert dense_in(tmp_path) == ((Dense(tmp_path / "2_Dense", 8, 4, True, "Tanh", False),), ())


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(tmp_path: Path, activation: str) -> None:
    write_modules(tmp_path, [POOLING, ("Dense", dense(8, 4, activation, use_residual=True))])
    (layer,), unknown = dense_in(tmp_path)
    assert (layer.activation, layer.residual, unknown) == (activation.rpartition(".")[2], True, ())


@pytest.mark.parametrize("more", [{}, {"module_input_name": "token_embeddings"}])
def test_a_layer_for_each_token(tmp_path: Path, more: dict[str, str]) -> None:
    """As ColBERT has it: there is no pooling."""
    write_modules(tmp_path, [("Dense", dense(768, 128, **more))])
    assert dense_in(tmp_path) == ((Dense(tmp_path / "1_Dense", 768, 128, False, "Identity", False),), ())


@pytest.mark.parametrize("modules", [None, [], [POOLING], [POOLING, NORMALIZE], [NORMALIZE]])
def test_models_without_layers(tmp_path: Path, modules: Any) -> None:
    if modules is not None:
        write_modules(tmp_path, modules)
    assert dense_in(tmp_path) == ((), ())


@pytest.mark.parametrize(
    ("modules", "unknown"),
    [
        ([POOLING, ("LayerNorm", {})], "LayerNorm"),
        ([POOLING, ("Dense", dense(8, 8)), ("WordWeights", {})], "WordWeights"),
        ([("Dense", dense(8, 8)), POOLING], "Dense before Pooling"),
        ([("Dense", dense(8, 8, module_input_name="sentence_embedding"))], "sentence_embedding"),
        ([POOLING, NORMALIZE, ("Dense", dense(8, 8))], "Dense after Normalize"),
        ([NORMALIZE, POOLING], "Pooling after Normalize"),
        ([POOLING, ("Dense", dense(8, 8, "torch.nn.modules.activation.PReLU"))], "PReLU"),
        ([POOLING, ("Dense", dense(8, 8, "fox.Tanh"))], "Dense with fox.Tanh"),
        ([POOLING, ("Dense", dense(8, 8, "Tanh"))], "Dense with Tanh"),
        ([POOLING, ("Dense", dense(8, 8, module_input_name="token_embeddings"))], "token_embeddings"),
    ],
)
def test_what_there_is_not(tmp_path: Path, modules: Any, unknown: str) -> None:
    write_modules(tmp_path, modules)
    layers, found = dense_in(tmp_path)
    assert layers == ()
    assert unknown in " ".join(found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"in_features": 8}, "in_features, out_features: numbers from 1 to 65536 are needed, not 8, None"),
        (dense(0, 4), "in_features, out_features"),
        (dense(8, 2**16 + 1), "in_features, out_features"),
        (dense(8, True), "in_features, out_features"),
        (dense(8, 4, bias="no"), "bias, use_residual: true or false is needed, not 'no', False"),
        (dense(8, 4, use_residual=1), "bias, use_residual"),
        ([], "is not a JSON object"),
    ],
)
def test_configurations_that_cannot_be(tmp_path: Path, given: Any, message: str) -> None:
    write_modules(tmp_path, [POOLING, ("Dense", dense(8, 8, IDENTITY))])
    path = tmp_path / "2_Dense" / "config.json"
    path.write_text(json.dumps(given))
    with pytest.raises(FileError, match=message) as caught:
        dense_in(tmp_path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_layer_without_its_folder(tmp_path: Path) -> None:
    write_modules(tmp_path, [POOLING, ("Dense", {})])
    with pytest.raises(FileError, match=r"2_Dense/config\.json cannot be read"):
        dense_in(tmp_path)
