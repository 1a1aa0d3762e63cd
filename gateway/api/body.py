"""From the bytes of a request to a validated body. At most `MAX_BODY_BYTES` are ever held."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.requests import ClientDisconnect, Request

from gateway.api.schema import RequestBody
from gateway.errors import BadRequest, TooLarge, WrongEncoding
from gateway.http.connection import Disconnected

MAX_BODY_BYTES = 4 * 2**20

Body = TypeVar("Body", bound=RequestBody)

_CODES = {
    "missing": "missing_required_parameter",
    "extra_forbidden": "unknown_parameter",
    "unsupported_parameter": "unsupported_parameter",
}
_MESSAGES = {"model_type": "Input should be an object", "dict_type": "Input should be an object"}
"""By pydantic's error type: messages that replace those that speak of Python."""


async def read_body(request: Request, kind: type[Body]) -> Body:
    """The request's body as a `kind`.

    Raises `TooLarge`, `WrongEncoding`, `BadRequest` naming the parameter, or `Disconnected`.
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.lower() != "identity":
        raise WrongEncoding(f"The content encoding '{encoding[:50]}' is not supported: send plain JSON.")
    return parse(await _read(request), kind)


async def _read(request: Request) -> bytes:
    too_large = TooLarge(f"The body is larger than {MAX_BODY_BYTES // 2**20} MiB.")
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise too_large
    except ClientDisconnect:
        raise Disconnected from None
    return bytes(body)


def parse(raw: bytes, kind: type[Body]) -> Body:
    """The body `raw`. Raises `BadRequest`, which names the parameter if one is wrong."""
    try:
        fields = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise BadRequest(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    try:
        return kind.model_validate(_supported(fields, kind))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _bad_request(problem["loc"], problem["type"], problem["msg"]) from None


def _supported(fields: dict[str, Any], kind: type[RequestBody]) -> dict[str, Any]:
    """The fields without those that change nothing: null means the default, as in OpenAI's API."""
    supported = {}
    for name, value in fields.items():
        if value is None or name in kind.ignored:
            continue
        if name in kind.neutral:
            if value not in kind.neutral[name]:
                raise BadRequest(f"'{name}' is not supported.", param=name, code="unsupported_parameter")
            continue
        supported[name] = value
    return supported


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
