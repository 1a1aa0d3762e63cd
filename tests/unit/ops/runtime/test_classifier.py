"""What config.json says of a classification head is what transformers makes of it."""

from typing import Any

import pytest
from transformers import LlamaConfig

from ops.runtime.classifier import Classifier, classifier_in
from ops.runtime.model_files import FileError


def of(**keys: Any) -> Classifier | None:
    return classifier_in({"architectures": ["LlamaForSequenceClassification"], **keys})


@pytest.mark.parametrize("architectures", [None, "LlamaForSequenceClassification", [], ["LlamaForCausalLM"]])
def test_other_models_have_none(architectures: Any) -> None:
    assert classifier_in({"architectures": architectures, "num_labels": 3}) is None


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
    with pytest.raises(FileError, match=f"^{key}: "):
        of(**{key: value})


def test_a_function_that_is_not_known() -> None:
    with pytest.raises(FileError, match=r"'torch\.nn\.ReLU' is not one of Identity"):
        of(sentence_transformers={"activation_fn": "torch.nn.ReLU"})
