"""From the bytes of a request to a validated body. At most `MAX_BODY_BYTES` of one request are ever held,
compressed or not.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from opentelemetry import trace
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request

from gateway.api.common.ignored import Ignored
from gateway.api.common.request_schema import RequestBody
from gateway.errors import BadRequest, WrongEncoding, WrongMediaType
from gateway.http.body_memory import MAX_BODY_BYTES, Held, body_too_large
from gateway.http.connection import Disconnected
from gateway.http.counts import check_counts
from gateway.http.gzipped import inflated
from gateway.http.json_text import value_of
from gateway.parsing import parsed

MAX_FIELDS = 128
"""Fields of a body that is read strictly: each unknown one costs an error object."""

_GZIP = ("gzip", "x-gzip")

Body = TypeVar("Body", bound=RequestBody)
Made = TypeVar("Made")

_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported_parameter": "unsupported_parameter",
}
_MESSAGES = dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), "Input should be an object")
"""By pydantic's error type: messages that replace those that speak of Python."""


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The request's body as a `kind`, with the name of the only model if it names none, or with the one that
    the path names. Fields that nobody knows are counted, and noted in the request's state `ignored`.

    Raises `TooLarge`, `WrongEncoding`, `WrongMediaType`, `Overloaded`, `BadRequest` naming the parameter,
    `Unavailable` or `Disconnected`.
    """
    if not (_is_json(request) or _may_be_json(request)):
        raise WrongMediaType("The body must be JSON: send 'Content-Type: application/json'.")
    encoding = request.headers.get("content-encoding", "").strip().lower() or "identity"
    if encoding not in ("identity", *_GZIP):
        raise WrongEncoding(f"The content encoding '{encoding[:50]}' is not supported: send gzip or none.")
    held: Held = request.state.body
    raw = await _read(request, held, encoding in _GZIP)
    ignored = request.state.noted = None if request.app.state.strict_fields else Ignored()
    try:
        body = await parsed(held.tenant, len(raw), lambda: parse(raw, kind, ignored))
    finally:
        if ignored:
            _tell(request, ignored, ignored.names)
    if kind.for_model and (deployment := getattr(request.state, "deployment", "")):
        return body.model_copy(update={"model": deployment})
    if body.model or not kind.for_model:
        return body
    return body.model_copy(update={"model": await request.app.state.catalog.only()})


async def made_of(request: Request, make: Callable[[], Made]) -> Made:
    """What `make` makes of the body that was read: of a large one in the thread where it was parsed. Raises
    what it raises."""
    held: Held = request.state.body
    return await parsed(held.tenant, held.size, make)


def _is_json(request: Request) -> bool:
    """Whether the body says that it is JSON. A web page can send other types to any server without asking it
    first."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/json" or media_type.endswith("+json")


def _may_be_json(request: Request) -> bool:
    """Whether the body is one for Ollama's API, which asks for no type, and no browser has sent it."""
    of_a_browser = "origin" in request.headers or "sec-fetch-site" in request.headers
    return request.url.path.startswith("/api/") and not of_a_browser


def note(request: Request, name: str) -> None:
    """Note that a part of the body is ignored after all."""
    ignored: Ignored = request.state.noted
    ignored.note(name)
    _tell(request, ignored, [name])


def _tell(request: Request, ignored: Ignored, names: Iterable[str]) -> None:
    """Count these `names`, and tell the client all that are ignored."""
    for name in names:
        request.app.state.ignored_fields.of(name).add()
    request.state.ignored = ignored.header()
    trace.get_current_span().set_attribute("quire.ignored", ignored.header())


async def _read(request: Request, held: Held, compressed: bool) -> bytes:
    held.announced(request.headers.get("content-length", ""))
    body = bytearray()
    pieces: AsyncIterator[bytes] = request.stream()
    try:
        async for piece in inflated(pieces, MAX_BODY_BYTES) if compressed else pieces:
            held.grow(len(piece))
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise body_too_large()
    except ClientDisconnect:
        raise Disconnected from None
    return bytes(body)


def parse(raw: bytes, kind: type[Body], ignored: Ignored | None = None) -> Body:
    """The body `raw`. Raises `BadRequest`, which names the parameter if one is wrong.

    `ignored`: where fields that nobody knows are noted; None: they are refused.
    """
    check_counts(raw)
    try:
        fields = value_of(raw)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    if ignored is None and len(fields) > MAX_FIELDS:
        raise BadRequest(f"The body has more than {MAX_FIELDS} fields.", code="invalid_value")
    return validated(fields, kind, ignored)


def validated(fields: dict[str, Any], kind: type[Body], ignored: Ignored | None = None) -> Body:
    """The body that has these fields. `ignored`, errors: as for `parse`."""
    try:
        return kind.model_validate(_supported(fields, kind), context=ignored)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        location = _without_types(problem["loc"], kind.mixed)
        raise _bad_request(location, problem["type"], problem["msg"]) from None


def _supported(fields: dict[str, Any], kind: type[RequestBody]) -> dict[str, Any]:
    """The fields without those that change nothing: null means the default, as in OpenAI's API."""
    supported = {}
    for name, value in fields.items():
        if value is None or name in kind.ignored:
            continue
        if name in kind.neutral:
            # Types, too: to Python 0 and False are equal.
            if not any(value == each and type(value) is type(each) for each in kind.neutral[name]):
                raise BadRequest(f"'{name}' is not supported.", param=name, code="unsupported_parameter")
            continue
        supported[name] = kind.value_of(name, value)
    return supported


def _without_types(location: Sequence[int | str], mixed: Collection[str]) -> list[int | str]:
    """A location without the types of parts, which stand behind their numbers in lists that are `mixed`."""
    found: list[int | str] = []
    for place, part in enumerate(location):
        numbered = 2 <= place < len(location) - 1 and isinstance(location[place - 1], int)
        if not (numbered and location[place - 2] in mixed):
            found.append(part)
    return found


def _bad_request(location: Sequence[int | str], kind: str, message: str) -> BadRequest:
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    if kind == "missing":
        message = f"Missing required parameter: '{param}'."
    elif kind == "extra_forbidden":
        message = f"Unrecognized request argument supplied: '{param[:100]}'."
    elif kind == "unsupported_parameter":
        message = f"'{param}' is not supported."
    else:
        message = _MESSAGES.get(kind, message).replace(" after validation", "")
        message = f"'{param}': {message[0].lower()}{message[1:]}."
    code = _CODES.get(kind)
    if code is None:
        code = "invalid_type" if kind.endswith("_type") else "invalid_value"
    return BadRequest(message, param=param[:100], code=code)
