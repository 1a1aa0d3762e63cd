"""What a model is for: a classifier classifies texts, an encoder or a model without a head embeds them, and
other models generate and embed them.

Each of these functions raises `BadRequest` if a model is not for what a request asks for.
"""

from collections.abc import Callable

from gateway.errors import BadRequest
from gateway.upstream.catalog import Model

Check = Callable[[Model], None]


def generates(model: Model) -> None:
    if not model.generates:
        raise _refusal(f"The model '{model.name}' {_purpose(model)} and generates none.")


def embeds(model: Model) -> None:
    if model.num_labels:
        raise _refusal(f"The model '{model.name}' {_purpose(model)} and embeds none.")


def classifies(model: Model) -> None:
    if not model.num_labels:
        raise _refusal(f"The model '{model.name}' has no classification head.")


def scores_pairs(model: Model) -> None:
    """Cross-encoders do: classifiers with one label."""
    if model.num_labels != 1:
        raise _refusal(f"The model '{model.name}' has {model.num_labels} labels: a cross-encoder has one.")


def sees_images(model: Model) -> None:
    if not model.images:
        message = f"The model '{model.name}' takes no images."
        raise BadRequest(message, param="messages", code="unsupported_value")


def _purpose(model: Model) -> str:
    if not model.num_labels:
        return "embeds texts (use '/v1/embeddings')"
    paths = "'/v1/classify'" if model.num_labels > 1 else "'/v1/classify', '/v1/score' and '/v1/rerank'"
    return f"classifies texts (use {paths})"


def _refusal(message: str) -> BadRequest:
    return BadRequest(message, param="model", code="invalid_value")
