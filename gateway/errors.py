"""Errors of the gateway, each with its HTTP status and its OpenAI error object.

GatewayError
├── BadRequest        400  the request cannot be served; names the parameter
├── Unauthorized      401  no API key, or an unknown one
├── NotFound          404  no such model or path
├── WrongMethod       405
├── TooLarge          413  the body is over the limit
├── WrongEncoding     415  the body is compressed
├── Overloaded        429  come back later
├── ServerFault       500
├── Unavailable       503  a service that the request needs is not running
└── TimedOut          504
"""

import json
from collections.abc import Mapping
from typing import ClassVar

import grpc
from starlette.responses import Response


class GatewayError(Exception):
    """An error as the client gets it: `{"error": {"message", "type", "param", "code"}}`."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    headers: Mapping[str, str] = {}

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.error_code = code or self.code

    def body(self) -> str:
        """The error object as JSON."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.error_code}
        return json.dumps({"error": error})

    def response(self) -> Response:
        return Response(self.body(), self.status, dict(self.headers), "application/json")


class BadRequest(GatewayError):
    status = 400
    type = "invalid_request_error"


class Unauthorized(GatewayError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"
    headers: Mapping[str, str] = {"WWW-Authenticate": "Bearer"}


class NotFound(GatewayError):
    status = 404
    type = "invalid_request_error"


class WrongMethod(GatewayError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"


class TooLarge(GatewayError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class WrongEncoding(GatewayError):
    status = 415
    type = "invalid_request_error"
    code = "unsupported_content_encoding"
    headers: Mapping[str, str] = {"Accept-Encoding": "identity"}


class Overloaded(GatewayError):
    status = 429
    type = "rate_limit_error"
    code = "overloaded"
    headers: Mapping[str, str] = {"Retry-After": "1"}


class ServerFault(GatewayError):
    code = "internal_error"


class Unavailable(GatewayError):
    status = 503
    type = "service_unavailable_error"
    code = "unavailable"
    headers: Mapping[str, str] = {"Retry-After": "5"}


class TimedOut(GatewayError):
    status = 504
    type = "timeout_error"
    code = "timeout"
    # OpenAI's clients retry after a 5xx. A retry would take as long again.
    headers: Mapping[str, str] = {"X-Should-Retry": "false"}


_BY_STATUS_CODE: dict[grpc.StatusCode, type[GatewayError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: BadRequest,
    grpc.StatusCode.OUT_OF_RANGE: BadRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOut,
}

_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_value",
    grpc.StatusCode.OUT_OF_RANGE: "context_length_exceeded",
}
"""The `code` of a `BadRequest`, as OpenAI's API has it."""


def retry_after(error: grpc.aio.AioRpcError) -> int:
    """Seconds after which to try again; 0 if waiting does not help."""
    return int(_trailing(error).get("quire-retry-after", 0))


def from_rpc(error: grpc.aio.AioRpcError, names: Mapping[str, str] = {}) -> GatewayError:
    """The error that the client gets for a call that failed.

    Trailing metadata `quire-param` names the parameter; `quire-retry-after` is the number of seconds after
    which to try again. `names`: the client's name by the service's name, for parameters where these differ.
    """
    kind = _BY_STATUS_CODE.get(error.code(), ServerFault)
    if kind is TimedOut:
        return TimedOut("The answer was not complete within 'timeout'.", param="timeout")
    param = _trailing(error).get("quire-param")
    param = names.get(param, param) if param else None
    code = _REFUSALS.get(error.code())
    found = kind(error.details() or error.code().name, param=param, code=code)
    if seconds := retry_after(error):
        found.headers = {"Retry-After": str(seconds)}
    return found


def _trailing(error: grpc.aio.AioRpcError) -> dict[str, str]:
    return {
        key: value.decode(errors="replace") if isinstance(value, bytes) else value
        for key, value in error.trailing_metadata() or ()
    }
