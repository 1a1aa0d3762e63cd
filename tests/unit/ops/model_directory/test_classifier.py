"""What a directory says of classification is what transformers and sentence-transformers make of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from ops.model_directory.classifier import Classifier, classifier_of
from ops.model_directory.files import FileError

NOWHERE = Path("nowhere")


def of(**keys: Any) -> Classifier | None:
    return classifier_of(NOWHERE, {"architectures": ["LlamaForSequenceClassification"], **keys})


def reranker(
    directory: Path, tokens: Any, folder: str = "1_LogitScore", **settings: Any
) -> Classifier | None:
    """A language model whose tokens score texts."""
    kinds = {
        "": "base.modules.transformer.Transformer",
        folder: "cross_encoder.modules.logit_score.LogitScore",
    }
    modules = [{"type": f"sentence_transformers.{kind}", "path": path} for path, kind in kinds.items()]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_LogitScore").mkdir()
    (directory / "1_LogitScore" / "config.json").write_text(json.dumps(tokens))
    if settings:
        (directory / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return classifier_of(directory, {"architectures": ["Qwen3ForCausalLM"]})


@pytest.mark.parametrize("architectures", [None, "LlamaForSequenceClassification", [], ["LlamaForCausalLM"]])
def test_other_models_have_none(architectures: Any) -> None:
    assert classifier_of(NOWHERE, {"architectures": architectures, "num_labels": 3}) is None


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"num_labels": 5},
        {"id2label": {"0": "no"}},
        {"id2label": {str(number): f"l{number}" for number in reversed(range(12))}},
    ],
)
def test_labels_are_those_of_transformers(keys: dict[str, Any]) -> None:
    found, theirs = of(**keys), LlamaConfig(**keys).id2label
    assert found is not None
    assert found.labels == tuple(theirs[number] for number in range(len(theirs)))


@pytest.mark.parametrize(
    ("keys", "function"),
    [
        ({}, "softmax"),
        ({"num_labels": 1}, "sigmoid"),
        ({"problem_type": "multi_label_classification"}, "sigmoid"),
        ({"problem_type": "multi_label_classification", "num_labels": 1}, "sigmoid"),
        ({"problem_type": "single_label_classification"}, "softmax"),
        ({"problem_type": "single_label_classification", "num_labels": 1}, "sigmoid"),
        ({"problem_type": "regression", "num_labels": 1}, "none"),
        ({"problem_type": "regression"}, "none"),
        ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, "none"),
        ({"sentence_transformers": {"version": "5.1"}}, "softmax"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, "sigmoid"),
    ],
)
def test_the_function_that_makes_scores_of_logits(keys: dict[str, Any], function: str) -> None:
    found = of(**keys)
    assert found is not None
    assert found.function == function


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_labels", 0),
        ("num_labels", "2"),
        ("id2label", []),
        ("id2label", {}),
        ("id2label", {"0": "a", "2": "b"}),
        ("id2label", {"0": 3}),
        ("problem_type", "ranking"),
        ("problem_type", ["regression"]),
    ],
)
def test_what_is_refused(key: str, value: Any) -> None:
    with pytest.raises(FileError, match=f"^nowhere/config.json: {key}: "):
        of(**{key: value})


def test_a_function_that_is_not_known() -> None:
    with pytest.raises(FileError, match=r"'torch\.nn\.ReLU' is not one of Identity"):
        of(sentence_transformers={"activation_fn": "torch.nn.ReLU"})


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ({"true_token_id": 9693, "false_token_id": 2152, "module_input_name": "causal_logits"}, (9693, 2152)),
        ({"true_token_id": 9454, "false_token_id": None}, (9454,)),
        ({"true_token_id": 0}, (0,)),
    ],
)
def test_tokens_that_score(tmp_path: Path, tokens: Any, expected: tuple[int, ...]) -> None:
    assert reranker(tmp_path, tokens) == Classifier(("LABEL_0",), "sigmoid", expected)


def test_the_function_in_the_settings_comes_first(tmp_path: Path) -> None:
    found = reranker(tmp_path, {"true_token_id": 1}, activation_fn="torch.nn.modules.linear.Identity")
    assert found == Classifier(("LABEL_0",), "none", (1,))
    config = {
        "architectures": ["LlamaForSequenceClassification"],
        "problem_type": "multi_label_classification",
    }
    found = classifier_of(tmp_path, config)
    assert found == Classifier(("LABEL_0", "LABEL_1"), "none")


@pytest.mark.parametrize(
    "tokens",
    [{}, {"true_token_id": -1}, {"true_token_id": True}, {"true_token_id": 1, "false_token_id": "no"}],
)
def test_tokens_that_are_none(tmp_path: Path, tokens: Any) -> None:
    with pytest.raises(FileError, match=r"1_LogitScore/config\.json: true_token_id and false_token_id: "):
        reranker(tmp_path, tokens)


@pytest.mark.parametrize("folder", ["../1_LogitScore", "/1_LogitScore", "a\0b"])
def test_a_module_outside_of_the_directory(tmp_path: Path, folder: str) -> None:
    with pytest.raises(FileError, match="a path within the directory"):
        reranker(tmp_path, {"true_token_id": 1}, folder)


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("{", "is not JSON"),
        ("{}", "is not a list"),
        ("[3]", "a module needs a type"),
        ("[" * 10**5, "not JSON"),
    ],
)
def test_modules_that_are_none(tmp_path: Path, listed: str, message: str) -> None:
    (tmp_path / "modules.json").write_text(listed)
    with pytest.raises(FileError, match=message):
        classifier_of(tmp_path, {})
