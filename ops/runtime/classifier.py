"""A classification head as config.json describes it: its labels, and the function that is applied to logits.

The rules are those of transformers (`PreTrainedConfig`, `TextClassificationPipeline`). Cross-encoders of
sentence-transformers name the function themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ops.runtime.model_files import FileError

ARCHITECTURE = "ForSequenceClassification"
"""End of the names of architectures with such a head."""

Function = Literal["softmax", "sigmoid", "none"]

_BY_TASK: Mapping[str, Function] = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_BY_MODULE: Mapping[str, Function] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
"""Functions by the last part of the name of PyTorch's module."""


@dataclass(frozen=True, slots=True)
class Classifier:
    """A classification head."""

    labels: tuple[str, ...]
    """Name of each label, at least one."""
    function: Function
    """What makes probabilities, or scores, of the labels' logits."""


def classifier_in(config: Mapping[str, Any]) -> Classifier | None:
    """The classification head of the model with this config.json; None if its architecture has none.

    Raises `FileError`, which names the key, but not the file.
    """
    match config.get("architectures"):
        case [str(name)] if name.endswith(ARCHITECTURE):
            labels = _labels_in(config)
            return Classifier(labels, _function_in(config, len(labels)))
    return None


def _labels_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels")
        count = 2 if count is None else count
        if type(count) is not int or not 0 < count < 2**16:
            raise FileError(f"num_labels: {str(count)[:40]} is not a number of labels")
        return tuple(f"LABEL_{number}" for number in range(count))
    if not isinstance(names, dict) or not names:
        raise FileError("id2label: not an object with labels by their numbers")
    labels = [names.get(str(number)) for number in range(len(names))]
    if not all(isinstance(label, str) for label in labels):
        raise FileError(f"id2label: not the names of labels 0 to {len(names) - 1}")
    try:
        "".join(map(str, labels)).encode()  # JSON can spell halves of characters
    except UnicodeEncodeError:
        raise FileError("id2label: a label is no text") from None
    return tuple(map(str, labels))


def _function_in(config: Mapping[str, Any], labels: int) -> Function:
    module = config.get("sbert_ce_default_activation_function")
    if isinstance(trained := config.get("sentence_transformers"), dict):
        module = trained.get("activation_fn") or module
    if module is not None:
        if (function := _BY_MODULE.get(str(module).rpartition(".")[2])) is None:
            raise FileError(f"activation_fn: {str(module)[:80]!r} is not one of {', '.join(_BY_MODULE)}")
        return function
    task = config.get("problem_type")
    if task is None:
        return "softmax" if labels > 1 else "sigmoid"
    if not isinstance(task, str) or task not in _BY_TASK:
        raise FileError(f"problem_type: {str(task)[:40]!r} is not one of {', '.join(_BY_TASK)}")
    # As in transformers: one label has a probability of its own.
    return "sigmoid" if labels == 1 and task != "regression" else _BY_TASK[task]
