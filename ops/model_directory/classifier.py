"""What a model classifies: its labels, and the function that is applied to their logits.

The rules are those of transformers (`PreTrainedConfig`, `TextClassificationPipeline`). Cross-encoders of
sentence-transformers name the function themselves. Some of them have no head of their own: their score is
what the language model's head gives to a token such as "yes", less what it gives to one such as "no".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ops.model_directory.files import MOST_SIZE, FileError, read_json
from ops.model_directory.modules import Module, modules_in

ARCHITECTURE = "ForSequenceClassification"
"""End of the names of architectures with a classification head."""

Function = Literal["softmax", "sigmoid", "none"]

_BY_TASK: Mapping[str, Function] = {
    "regression": "none",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}
_TOKENS = "LogitScore"
"""The module of sentence-transformers that makes a score of a language model's logits."""
_SETTINGS = "config_sentence_transformers.json"
_BY_MODULE: Mapping[str, Function] = {"Identity": "none", "Sigmoid": "sigmoid", "Softmax": "softmax"}
"""Functions by the last part of the name of PyTorch's module."""


@dataclass(frozen=True, slots=True)
class Classifier:
    """What makes a model a classifier."""

    labels: tuple[str, ...]
    """Name of each label, at least one."""
    function: Function
    """What makes probabilities, or scores, of the labels' logits."""
    tokens: tuple[int, ...] = ()
    """Without a head of its own, the model's one label has the logit of the first of these tokens, less that
    of the second if there is one. Empty: the model has a classification head."""


def classifier_of(directory: Path, config: Mapping[str, Any]) -> Classifier | None:
    """What the model of a directory with this config.json classifies; None if it does not.

    Raises `FileError`, with one line that names the file and the key.
    """
    modules = modules_in(directory)
    scoring = next((module for module in modules if module.kind == _TOKENS), None)
    try:
        match config.get("architectures"):
            case [str(name)] if name.endswith(ARCHITECTURE):
                labels = _labels_in(config)
                return Classifier(labels, _function_in(directory, config, len(labels)))
        if scoring is None:
            return None
        return Classifier(("LABEL_0",), _function_in(directory, config, 1), _tokens_in(directory, scoring))
    except _KeyError as error:
        raise FileError(f"{directory / 'config.json'}: {error}") from None


class _KeyError(Exception):
    """A value of config.json cannot be used. The message names the key."""


def _tokens_in(directory: Path, scoring: Module) -> tuple[int, ...]:
    path = directory / scoring.path / "config.json"
    given = read_json(path)
    found = [given.get("true_token_id"), given.get("false_token_id")]
    if found[1] is None:
        found.pop()
    if not all(type(token) is int and 0 <= token <= MOST_SIZE for token in found):
        raise FileError(f"{path}: true_token_id and false_token_id: not the numbers of two tokens, or of one")
    return tuple(int(token) for token in found if token is not None)


def _labels_in(config: Mapping[str, Any]) -> tuple[str, ...]:
    names = config.get("id2label")
    if names is None:
        count = config.get("num_labels")
        count = 2 if count is None else count
        if type(count) is not int or not 0 < count < 2**16:
            raise _KeyError(f"num_labels: {str(count)[:40]} is not a number of labels")
        return tuple(f"LABEL_{number}" for number in range(count))
    if not isinstance(names, dict) or not names:
        raise _KeyError("id2label: not an object with labels by their numbers")
    labels = [names.get(str(number)) for number in range(len(names))]
    if not all(isinstance(label, str) for label in labels):
        raise _KeyError(f"id2label: not the names of labels 0 to {len(names) - 1}")
    try:
        "".join(map(str, labels)).encode()  # JSON can spell halves of characters
    except UnicodeEncodeError:
        raise _KeyError("id2label: a label is no text") from None
    return tuple(map(str, labels))


def _function_in(directory: Path, config: Mapping[str, Any], labels: int) -> Function:
    settings = directory / _SETTINGS
    module = read_json(settings).get("activation_fn") if settings.is_file() else None
    path = settings if module is not None else directory / "config.json"
    if module is None:
        module = config.get("sbert_ce_default_activation_function")
        if isinstance(trained := config.get("sentence_transformers"), dict):
            module = trained.get("activation_fn") or module
    if module is not None:
        if (function := _BY_MODULE.get(str(module).rpartition(".")[2])) is None:
            what = f"{str(module)[:80]!r} is not one of {', '.join(_BY_MODULE)}"
            raise FileError(f"{path}: activation_fn: {what}")
        return function
    task = config.get("problem_type")
    if task is None:
        return "softmax" if labels > 1 else "sigmoid"
    if not isinstance(task, str) or task not in _BY_TASK:
        raise _KeyError(f"problem_type: {str(task)[:40]!r} is not one of {', '.join(_BY_TASK)}")
    # As in transformers: one label has a probability of its own.
    return "sigmoid" if labels == 1 and task != "regression" else _BY_TASK[task]
