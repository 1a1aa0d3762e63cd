"""Texts for a classifier, and what its logits become: a number for each label.

A cross-encoder is a classifier with one label that reads two texts together. They are rendered through the
chat template if it has the roles `query` and `document`, as templates of rerankers have. Otherwise the
tokenizer joins them in its own way, as it does for cross-encoders in sentence-transformers.
"""

import re
from collections.abc import Mapping
from math import exp, fsum
from typing import Any

from ops.model_directory.classifier import Classifier, Function
from proto import arrays
from tokenizer_svc.errors import InvalidRequestError, SchedulerError

SETTINGS = "sentence_bert_config.json"
"""File of sentence-transformers with the arguments of the chat template."""
_ROLES = tuple(re.compile(rf"""(['"]){role}\1""") for role in ("query", "document"))
_OF_LENGTH = frozenset({"restore_suffix", "padding", "truncation", "max_length", "return_tensors"})
"""Arguments there that are not the template's, but about texts that are too long, which Quire refuses."""


def pair_arguments(template: str | None, settings: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Arguments with which a chat template renders a pair; None if it has no roles `query` and `document`.

    `settings`: what is in `SETTINGS`.
    """
    if template is None or not all(role.search(template) for role in _ROLES):
        return None
    match settings.get("processing_kwargs"):
        case {"chat_template": dict(arguments)}:
            return {name: value for name, value in arguments.items() if name not in _OF_LENGTH}
    return {}


def check_generates(classifier: Classifier | None, bidirectional: bool = False) -> None:
    """Raise `InvalidRequestError` for a model that only classifies, and for an encoder (`bidirectional`)."""
    if classifier is not None:
        raise InvalidRequestError("model", f"this model {_purpose(classifier)}: it generates no text")
    if bidirectional:
        raise InvalidRequestError("model", "this model embeds texts: it generates no text")


def check_pooling(classifier: Classifier | None, classifies: bool) -> None:
    """Raise `InvalidRequestError` if a model without labels is asked for them, or one with labels for an
    embedding."""
    if classifier is None and classifies:
        raise InvalidRequestError("model", "this model has no classification head")
    if classifier is not None and not classifies:
        raise InvalidRequestError("model", f"this model {_purpose(classifier)}: it embeds no text")


def _purpose(classifier: Classifier) -> str:
    labels = len(classifier.labels)
    return f"classifies texts by {labels} labels" if labels > 1 else "scores texts"


def classified(classifier: Classifier, logits: bytes, raw: bool) -> tuple[bytes, str]:
    """A number for each label, float32, and the label with the highest number.

    `logits`: float32 [labels], finite. `raw`: the numbers are the logits. Raises `SchedulerError` for another
    number of logits.
    """
    numbers = arrays.unpack(logits, arrays.FLOAT32)
    if len(numbers) != len(classifier.labels):
        raise SchedulerError(f"{len(numbers)} logits of a model with {len(classifier.labels)} labels")
    best = max(range(len(numbers)), key=numbers.__getitem__)
    if not raw and classifier.function != "none":
        logits = arrays.pack(_applied(classifier.function, list(numbers)), arrays.FLOAT32)
    return logits, classifier.labels[best]


def _applied(function: Function, logits: list[float]) -> list[float]:
    if function == "sigmoid":
        return [1 / (1 + exp(-x)) if x > 0 else exp(x) / (1 + exp(x)) for x in logits]
    highest = max(logits)
    shares = [exp(x - highest) for x in logits]
    whole = fsum(shares)
    return [share / whole for share in shares]
