"""Errors of the gateway, each with its HTTP status and its OpenAI error object.

What a class says of itself is in the OpenAPI document.
"""

import json
import logging
from collections.abc import Mapping
from typing import ClassVar

import grpc

from proto.rpc.call import TOO_LARGE

logger = logging.getLogger(__name__)


_REQUEST = "invalid_request_error"
_FINAL = {"X-Should-Retry": "false"}
"""OpenAI's clients retry after a 5xx. A retry would cost as much again."""


class GatewayError(Exception):
    """An error as the client gets it: `{"error": {"message", "type", "param", "code"}}`."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    headers: Mapping[str, str] = {}

    def __init_subclass__(
        cls,
        *,
        status: int | None = None,
        type: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """What is left out is as in the class above."""
        super().__init_subclass__()
        cls.status = status or cls.status
        cls.type = type or cls.type
        cls.code = code or cls.code
        cls.headers = cls.headers if headers is None else headers

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.error_code = code or self.code

    def body(self) -> str:
        """The error object as JSON."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.error_code}
        return json.dumps({"error": error})


class BadRequest(GatewayError, status=400, type=_REQUEST):
    """The request cannot be served; `param` names what is wrong with it."""


class Unauthorized(
    GatewayError,
    status=401,
    type=_REQUEST,
    code="invalid_api_key",
    headers={"WWW-Authenticate": "Bearer"},
):
    """There is no API key, or one that is not valid."""


class Forbidden(GatewayError, status=403, type=_REQUEST):
    """The request is for another host, comes from a foreign web page, or asks for what its caller may not."""


class NotFound(GatewayError, status=404, type=_REQUEST):
    """There is no such model or path."""


class UnknownModel(NotFound, code="model_not_found"):
    """There is no such model."""

    def __init__(self, message: str, *, others: bool) -> None:
        """`others`: whether other models are available."""
        super().__init__(message, param="model")
        self.others = others


class WrongMethod(GatewayError, status=405, type=_REQUEST, code="method_not_allowed"):
    """The path has no such method."""


class TooSlow(GatewayError, status=408, type="timeout_error", code="request_timeout"):
    """The head or the body of the request took too long."""


class TooLarge(GatewayError, status=413, type=_REQUEST, code="request_too_large"):
    """The body is over the limit."""


class WrongEncoding(
    GatewayError,
    status=415,
    type=_REQUEST,
    code="unsupported_content_encoding",
    headers={"Accept-Encoding": "gzip, identity"},
):
    """The body is compressed in a way other than gzip."""


class WrongMediaType(
    GatewayError,
    status=415,
    type=_REQUEST,
    code="unsupported_media_type",
    headers={"Accept-Post": "application/json"},
):
    """The body is not JSON."""


class HeadTooLarge(GatewayError, status=431, type=_REQUEST, code="request_header_fields_too_large"):
    """The head of the request is over the limit."""


class Overloaded(
    GatewayError, status=429, type="rate_limit_error", code="overloaded", headers={"Retry-After": "1"}
):
    """There are too many requests; come back later."""


class ServerFault(GatewayError, code="internal_error"):
    """Something failed that nobody has planned. The message has an id, under which the log has the reason."""

    def __init__(self, request_id: str) -> None:
        super().__init__(f"The server failed to process the request (id {request_id}).")


# The fault is the server's, which no request should be able to end. So this is no 4xx.
class GaveUp(GatewayError, code="request_poisoned", headers=_FINAL):
    """One process after the other died of the request, and it is not tried again."""


class Unavailable(
    GatewayError,
    status=503,
    type="service_unavailable_error",
    code="unavailable",
    headers={"Retry-After": "5"},
):
    """A service that the request needs is not running."""


class Stopping(Unavailable, headers={"Retry-After": "1"}):
    """This gateway is being stopped; another may serve the request at once."""

    def __init__(self) -> None:
        super().__init__("The gateway is stopping.")


class TimedOut(GatewayError, status=504, type="timeout_error", code="timeout", headers=_FINAL):
    """The answer was not complete in time."""


_BY_STATUS_CODE: dict[grpc.StatusCode, type[GatewayError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: BadRequest,
    grpc.StatusCode.OUT_OF_RANGE: BadRequest,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.FAILED_PRECONDITION: Unavailable,
    grpc.StatusCode.ABORTED: GaveUp,
}

_REFUSALS = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid_value",
    grpc.StatusCode.OUT_OF_RANGE: "context_length_exceeded",
}
"""The `code` of a `BadRequest`, as OpenAI's API has it."""


def retry_after(error: grpc.aio.AioRpcError) -> int:
    """Seconds after which to try again; 0 if waiting does not help."""
    return int(_trailing(error).get("quire-retry-after", 0))


def from_rpc(error: grpc.aio.AioRpcError, request_id: str, names: Mapping[str, str] = {}) -> GatewayError:
    """The error that the client gets for a call that failed.

    Trailing metadata `quire-param` names the parameter; `quire-retry-after` is the number of seconds after
    which to try again. `names`: the client's name by the service's name, for parameters where these differ.
    The text of a status that no service chooses for clients is logged under `request_id`, and not sent.
    """
    code, trailing = error.code(), _trailing(error)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimedOut("The answer was not complete within 'timeout'.", param="timeout")
    kind = TooLarge if TOO_LARGE in trailing else _BY_STATUS_CODE.get(code)
    if kind is None:
        logger.error("request %s: %s: %s", request_id, code.name, error.details())
        return ServerFault(request_id)
    if kind is Unavailable:
        logger.warning("request %s: %s: %s", request_id, code.name, error.details())
        return Unavailable("The processes that could answer are not there.")
    if kind is TooLarge:
        return TooLarge("The request, with the answer so far, is larger than the services can pass on.")
    param = trailing.get("quire-param")
    param = names.get(param, param) if param else None
    found = kind(error.details() or code.name, param=param, code=_REFUSALS.get(code))
    if seconds := retry_after(error):
        found.headers = {"Retry-After": str(seconds)}
    return found


def _trailing(error: grpc.aio.AioRpcError) -> dict[str, str]:
    return {
        key: value.decode(errors="replace") if isinstance(value, bytes) else value
        for key, value in error.trailing_metadata() or ()
    }
