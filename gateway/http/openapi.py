"""Bodies, answers, headers and errors in /openapi.json. FastAPI knows none: it sees plain responses."""

import threading
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from gateway.errors import (
    BadRequest,
    Forbidden,
    GatewayError,
    GaveUp,
    HeadTooLarge,
    NotFound,
    Overloaded,
    ServerFault,
    Stopping,
    TimedOut,
    TooLarge,
    TooSlow,
    Unauthorized,
    Unavailable,
    WrongEncoding,
    WrongMediaType,
)
from gateway.http.meter import RATE_HEADERS

_REFERENCE = "#/components/schemas/{model}"

_EVERYWHERE = (BadRequest, Forbidden, TooSlow, HeadTooLarge, Overloaded, ServerFault, Unavailable)
"""What any request may get: from its connection, for its head, or where something unplanned fails."""
_WITH_BODY = (Unauthorized, NotFound, TooLarge, WrongEncoding, WrongMediaType, GaveUp, Stopping, TimedOut)
"""What else a request with a body may get."""
_NEVER_COUNTED = {one.status for one in (Unauthorized, Forbidden, TooSlow, WrongMediaType, HeadTooLarge)}
"""Statuses of requests that are refused before they are counted."""

_HEADERS: dict[str, tuple[str, dict[str, Any]]] = {
    "X-Quire-Ignored": (
        "Fields of the request that nobody knows and that changed nothing.",
        {"type": "string"},
    ),
    "Content-Encoding": ("How the answer is compressed, if the request asks for it.", {"const": "gzip"}),
    "Vary": ("Headers of the request that the answer depends on.", {"type": "string"}),
    "X-Request-Id": ("The request's id in logs and traces.", {"type": "string"}),
    "request-id": ("The same id, under `/v1/messages`.", {"type": "string"}),
    "Idempotent-Replayed": (
        "Another request with this `Idempotency-Key` has the same answer.",
        {"const": "true"},
    ),
    "Retry-After": ("Seconds after which to try again.", {"type": "integer", "minimum": 1}),
    "X-Should-Retry": ("`false`: another try would cost as much again.", {"const": "false"}),
    "WWW-Authenticate": ("How to say who asks.", {"const": "Bearer"}),
    "Accept-Encoding": ("What a body may be encoded with.", {"const": "gzip, identity"}),
    "Accept-Post": ("What a body may be.", {"const": "application/json"}),
    "x-ratelimit-limit-*": ("How many {} a minute the caller may ask for.", {"type": "integer"}),
    "x-ratelimit-remaining-*": ("How many of these {} are left.", {"type": "integer", "minimum": 0}),
    "x-ratelimit-reset-*": (
        "Time until all of these {} are back.",
        {"type": "string", "pattern": r"^[0-9.e+-]+s$"},
    ),
}
"""Description and schema by name. `*` stands for what is counted."""

_USUAL_HEADERS = ("X-Request-Id", "request-id", "Content-Encoding", "Vary")

_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Another request with the same key and body gets the same answer, and is not computed.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
}
_EVENT = {
    "type": "object",
    "description": "An event: the next piece of the answer, or an error.",
    "required": ["data"],
    "additionalProperties": False,
}
_NONE: Mapping[str, type[BaseModel]] = {}

Operation = dict[str, Any]
"""What is added to an operation of the document: FastAPI's `openapi_extra`."""


class ErrorDetail(BaseModel):
    """What went wrong."""

    model_config = ConfigDict(extra="forbid")

    message: str
    type: str
    param: str | None = Field(description="The field of the request that is wrong.")
    code: str | None


class ErrorAnswer(BaseModel):
    """The body of every answer whose status is 400 or above."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorDetail


def getting(
    answer: type[BaseModel],
    *errors: type[GatewayError],
    unready: bool = False,
    events: Mapping[str, type[BaseModel]] = _NONE,
    error: type[BaseModel] | None = None,
) -> Operation:
    """An operation without a body, whose answer is an `answer`; `unready`: also that of status 503.

    `errors`: what it may end with, besides what every request may get. `events`, `error`: as for `posting`.
    """
    responses = {"200": _response("The answer.", answer), **_errors((*_EVERYWHERE, *errors))}
    _shape(responses, error)
    if events:
        responses["200"]["content"]["text/event-stream"] = _named_events(events)
    if unready:
        shapes = (ErrorAnswer,) if error is None else (error, ErrorAnswer)
        responses["503"]["content"] = _json(answer, *shapes)
    return {"responses": responses}


def getting_text(description: str, *errors: type[GatewayError]) -> Operation:
    """An operation without a body, whose answer is text. `errors`: as of `getting`."""
    found = _response(description, ErrorAnswer)
    found["content"] = {"text/plain": {"schema": {"type": "string"}}}
    return {"responses": {"200": found, **_errors((*_EVERYWHERE, *errors))}}


def posting(
    body: type[BaseModel],
    answer: type[BaseModel],
    *,
    event: type[BaseModel] | None = None,
    events: Mapping[str, type[BaseModel]] = _NONE,
    lines: bool = False,
    error: type[BaseModel] | None = None,
) -> Operation:
    """An operation whose body is a `body`.

    `event`: the answer may be a stream of these instead. `events`: or a stream of these, by their names.
    `lines`: or a stream of JSON objects, each of which is an `answer` on a line of its own.
    `error`: what an error is, if the request was read so far that its path was known.
    """
    found = _response("The answer.", answer)
    if event is not None:
        piece = {"contentMediaType": "application/json", "contentSchema": _schema(event, ErrorAnswer)}
        found["content"]["text/event-stream"] = _stream(
            {"const": "message"}, {"type": "string", "anyOf": [{"const": "[DONE]"}, piece]}
        )
    if events:
        found["content"]["text/event-stream"] = _named_events(events)
    if lines:
        description = f"Lines, each of them a {answer.__name__}, or at the end an error."
        found["content"]["application/x-ndjson"] = {"schema": {"type": "string", "description": description}}
    responses = {"200": found, **_errors((*_EVERYWHERE, *_WITH_BODY))}
    _shape(responses, error)
    for status, response in responses.items():
        if int(status) not in _NEVER_COUNTED:
            response["headers"] |= {name: _header(name) for name in ("X-Quire-Ignored", *RATE_HEADERS)}
    found["headers"]["Idempotent-Replayed"] = _header("Idempotent-Replayed")
    return {
        "parameters": [_IDEMPOTENCY_KEY],
        "requestBody": {"required": True, "content": _json(body)},
        "responses": responses,
    }


def uploading(body: type[BaseModel], answer: type[BaseModel]) -> Operation:
    """An operation whose body is a form, with fields as those of `body`."""
    operation = posting(body, answer)
    content = operation["requestBody"]["content"]
    content["multipart/form-data"] = content.pop("application/json")
    return operation


class Described(FastAPI):
    """An application whose document has the schemas of `models`, and no answers of FastAPI that nobody sends.

    To make it takes some tenths of a second, and few ask for it: it is made, once, when somebody does, in a
    thread beside the event loop.
    """

    def __init__(self, models: Iterable[type[BaseModel]], **options: Any) -> None:
        super().__init__(openapi_url=None, **options)
        self._models: list[type[BaseModel]] = [*models, ErrorAnswer]
        self._making = threading.Lock()
        self.add_route("/openapi.json", self._answer_document, include_in_schema=False)

    def _answer_document(self, _: Request) -> Response:
        return JSONResponse(self.openapi())

    def openapi(self) -> dict[str, Any]:
        with self._making:
            if self.openapi_schema is None:
                _, definitions = models_json_schema(
                    [(model, "validation") for model in self._models], ref_template=_REFERENCE
                )
                _complete(super().openapi(), definitions["$defs"])
            assert self.openapi_schema is not None
            return self.openapi_schema


def _complete(document: dict[str, Any], definitions: Mapping[str, Any]) -> None:
    for path in document["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)  # an invalid field is a 400, as in OpenAI's API
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas.update(definitions)


def _shape(responses: dict[str, Any], error: type[BaseModel] | None) -> None:
    """Note what errors are where they are not OpenAI's. The connection's own errors always are."""
    if error is not None:
        for status in responses.keys() - {"200"}:
            responses[status]["content"] = _json(error, ErrorAnswer)


def _named_events(events: Mapping[str, type[BaseModel]]) -> dict[str, Any]:
    """A stream of these events, by their names."""
    data: dict[str, Any] = {"type": "string", "contentMediaType": "application/json"}
    found = _stream({"enum": list(events)}, data | {"contentSchema": _schema(*events.values())})
    described = "Of a background response: `Last-Event-ID` of a request that goes on after it."
    found["schema"]["properties"]["id"] = {"type": "string", "description": described}
    return found


def _stream(name: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """A stream of events. `name`, `data`: the schemas of these two parts of an event."""
    return {"schema": {**_EVENT, "properties": {"event": name, "data": data}}}


def _errors(errors: Iterable[type[GatewayError]]) -> dict[str, Any]:
    """A response for each status that `errors` have."""
    found: dict[str, Any] = {}
    for error in sorted(errors, key=lambda error: error.status):
        description = " ".join((error.__doc__ or "").split())
        if (response := found.get(str(error.status))) is None:
            found[str(error.status)] = _response(description, ErrorAnswer, *error.headers)
        else:
            response["description"] += f" Or: {description}"
            response["headers"] |= {name: _header(name) for name in error.headers}
    return found


def _response(description: str, model: type[BaseModel], *headers: str) -> dict[str, Any]:
    """`headers`: names of those that it may have besides `_USUAL_HEADERS`."""
    found = {name: _header(name) for name in _USUAL_HEADERS + headers}
    return {"description": description, "headers": found, "content": _json(model)}


@cache
def _header(name: str) -> Mapping[str, Any]:
    start, _, counted = name.rpartition("-")
    description, schema = _HEADERS.get(name) or _HEADERS[f"{start}-*"]
    return {"description": description.format(counted), "schema": schema}


def _json(*models: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": _schema(*models)}}


def _schema(*models: type[BaseModel]) -> dict[str, Any]:
    """The schema of one of `models`."""
    found = [{"$ref": _REFERENCE.format(model=model.__name__)} for model in models]
    return found[0] if len(found) == 1 else {"anyOf": found}
