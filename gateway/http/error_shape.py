"""Errors in the shape of the API that a path belongs to: of OpenAI, Anthropic, Ollama, KServe or TEI."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Scope

from gateway.errors import GatewayError


@dataclass(frozen=True)
class ErrorShape:
    """How one API writes an error."""

    body: Callable[[GatewayError, str], str]
    """As JSON. The second argument is the request's id."""
    framed: Callable[[str], str]
    """Such JSON as the last part of a stream."""


_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By status. Others below 500 are invalid requests, and others above are errors of the server."""


def anthropic_type(status: int) -> str:
    """The `type` of an error with this status in Anthropic's API."""
    usual = "invalid_request_error" if status < 500 else "api_error"
    return _ANTHROPIC_TYPES.get(status, usual)


_ANTHROPIC_DETAILS = {"thread": {"error_code": "thread_unsupported_request"}}
"""By a parameter that is not supported, what lets Anthropic's clients go on without it: without a thread they
send all messages of the conversation."""


def _anthropic(error: GatewayError, request_id: str) -> str:
    detail: dict[str, object] = {"type": anthropic_type(error.status), "message": error.message}
    if error.error_code == "unsupported_parameter" and error.param in _ANTHROPIC_DETAILS:
        detail["details"] = _ANTHROPIC_DETAILS[error.param]
    return json.dumps({"type": "error", "error": detail, "request_id": request_id})


_RESPONSES_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Fields of the chat API that the Responses API calls otherwise."""


def _responses(error: GatewayError, _: str) -> str:
    body = json.loads(error.body())
    for name, other in _RESPONSES_NAMES.items():
        body["error"]["message"] = body["error"]["message"].replace(f"'{name}'", f"'{other}'")
        if re.match(rf"{name}\b", error.param or ""):
            body["error"]["param"] = other
    return json.dumps(body)


OPENAI = ErrorShape(lambda error, _: error.body(), lambda body: f"data: {body}\n\n")
_MESSAGE = ErrorShape(lambda error, _: json.dumps({"error": error.message}), lambda body: f"{body}\n")
"""Ollama's and KServe's."""


def _of_texts(error: GatewayError, _: str) -> str:
    usual = "Validation" if error.status < 500 else "Backend"
    kind = "Overloaded" if error.status in (429, 503) else usual
    message = re.sub(r"'input\b", "'inputs", error.message)
    return json.dumps({"error": message, "error_type": kind})


_SHAPES = {
    "/embed": ErrorShape(_of_texts, OPENAI.framed),
    "/info": ErrorShape(_of_texts, OPENAI.framed),
    "/api/": _MESSAGE,
    "/v2/health": _MESSAGE,
    "/v2/models": _MESSAGE,
    "/v1/responses": ErrorShape(_responses, OPENAI.framed),
    "/v1/messages": ErrorShape(_anthropic, lambda body: f"event: error\ndata: {body}\n\n"),
}
"""By the beginning of the path. All others are OpenAI's."""


def shape_at(path: str) -> ErrorShape:
    return next((shape for start, shape in _SHAPES.items() if path.startswith(start)), OPENAI)


def refusal(error: GatewayError, scope: Scope) -> Response:
    """The response to the request `scope` that ends with `error`."""
    body = shape_at(scope["path"]).body(error, scope["state"]["request_id"])
    return Response(body, error.status, dict(error.headers), "application/json")


def last_words(error: GatewayError, scope: Scope) -> str:
    """The end of a stream that has begun and that fails with `error`."""
    shape = shape_at(scope["path"])
    return shape.framed(shape.body(error, scope["state"]["request_id"]))
