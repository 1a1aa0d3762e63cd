"""The messages of the WebSocket: JSON objects with a `type`.

From the client: `request` with an `id`, a `path` and a `body`, and perhaps an `idempotency_key`; `cancel`
with an `id`; `key` with an API key. To the client: `event` with a piece of a streamed answer, and after the
last one `end`; `answer` with a whole one; `error` where a message is refused.
"""

import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.errors import BadRequest, GatewayError
from gateway.http.counts import check_counts
from gateway.http.json_text import value_of

MAX_ID = 64
Id = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
"""Names a request among those of its socket."""


class _Frame(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RequestFrame(_Frame):
    """A POST to a path of the API."""

    type: Literal["request"]
    id: Id
    path: str = Field(pattern=r"^/[!-~]{1,200}$")
    body: dict[str, Any]
    idempotency_key: str | None = None


class CancelFrame(_Frame):
    """The client wants no more of an answer."""

    type: Literal["cancel"]
    id: Id


class KeyFrame(_Frame):
    """The API key of all requests that follow."""

    type: Literal["key"]
    key: str = Field(pattern=r"^[!-~]{1,512}$")


Frame = RequestFrame | CancelFrame | KeyFrame
_NO_OBJECT = ("model_attributes_type", "dict_type")
"""Pydantic's error types whose messages speak of Python's dictionaries."""
_FRAMES: TypeAdapter[Frame] = TypeAdapter(Annotated[Frame, Field(discriminator="type")])


class NotUnderstood(BadRequest, code="invalid_message"):
    """A message is none of these frames. `id` names the request that it was to be, if that can be read."""

    def __init__(self, why: str, id_: str | None = None) -> None:
        super().__init__(f"The message is not understood: {why}.")
        self.id = id_


def read_frame(text: str) -> Frame:
    """Raises `BadRequest`, as `NotUnderstood` and for one that has too many parts."""
    raw = text.encode()
    check_counts(raw)
    try:
        value = value_of(raw)
    except ValueError as error:
        raise NotUnderstood(f"it is not valid JSON: {error}") from None
    try:
        return _FRAMES.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, problem["loc"]))[:100]
        why = "Input should be an object" if problem["type"] in _NO_OBJECT else problem["msg"]
        if place:
            why = f"{place}: {why}"
        raise NotUnderstood(why, _id_in(value)) from None


def _id_in(value: object) -> str | None:
    """The id of a message; None of one that cancels: the request of that id goes on."""
    match value:
        case {"type": "cancel"}:
            return None
        case {"id": str(found)} if 0 < len(found) <= MAX_ID:
            return found
    return None


def event_frame(id_: str, data: str, name: str | None = None) -> str:
    """A piece of the answer to `id_`; `data` is JSON. `name`: the event's, where events have names."""
    named = f',"event":{json.dumps(name)}' if name else ""
    return f'{{"type":"event","id":{json.dumps(id_)}{named},"data":{data}}}'


def answer_frame(id_: str, status: int, body: str) -> str:
    """A whole answer; `body` is JSON."""
    return f'{{"type":"answer","id":{json.dumps(id_)},"status":{status},"body":{body}}}'


def end_frame(id_: str, cancelled: bool = False) -> str:
    """The end of an answer that came in pieces, or that the client has cancelled."""
    return json.dumps({"type": "end", "id": id_} | ({"cancelled": True} if cancelled else {}))


def error_frame(error: GatewayError, id_: str | None = None) -> str:
    """Why a message is refused; `id_`: of the request that it is."""
    return json.dumps({"type": "error", "id": id_, "status": error.status, **json.loads(error.body())})


class Pieces:
    """Takes a streamed body apart: server-sent events, or JSON objects on lines of their own."""

    def __init__(self, media_type: str) -> None:
        self._events = media_type == "text/event-stream"
        self._mark = "\n\n" if self._events else "\n"
        self._decoder = getincrementaldecoder("utf-8")()
        self._rest = ""

    def add(self, piece: bytes) -> Iterator[tuple[str | None, str]]:
        """Names and data of what is complete with this piece. OpenAI's end mark is left out."""
        *whole, self._rest = (self._rest + self._decoder.decode(piece)).split(
            "\n\n" if self._events else "\n"
        )
        for one in whole:
            if not self._events:
                yield None, one
                continue
            name = data = None
            for line in one.split("\n"):
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    data = value
            if data is not None and data != "[DONE]":
                yield name, data
