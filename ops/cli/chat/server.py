"""An OpenAI-compatible server: its models, and an answer as deltas."""

import json
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import httpx

from ops.cli.chat.errors import ChatError

TIMEOUT = httpx.Timeout(10.0, read=300.0)
"""Seconds. An answer may have to wait for its turn, or for a process that comes back."""
_REFUSED = (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError)
"""What reading an answer raises if it is no answer."""


@dataclass(frozen=True)
class Delta:
    """What one event of a stream adds to an answer."""

    text: str = ""
    thought: str = ""
    tool: str = ""
    """A piece of the call of a function: its name, or its arguments in JSON."""
    finish: str = ""
    """Why the answer ended, in its last event."""
    tokens: int = 0
    """Tokens of the whole answer, if the event says that."""


class Server:
    """Asks one server. Every method raises `ChatError`."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    @property
    def url(self) -> str:
        return str(self._client.base_url).rstrip("/")

    def models(self) -> list[str]:
        """Names of the models that are offered and generate text, at least one."""
        try:
            response = self._client.get("/v1/models").raise_for_status()
            listed = response.json()["data"]
            offered = [str(entry["id"]) for entry in listed if entry.get("generates", True)]
        except _REFUSED as error:
            self._explain(error)
        if not offered:
            what = "a model that generates text" if listed else "a model yet"
            raise ChatError(f"{self.url} does not offer {what}")
        return offered

    def answer(self, body: dict[str, Any]) -> Generator[Delta, None, None]:
        """The answer to a chat completion, as it comes."""
        try:
            yield from self._stream({**body, "stream": True, "stream_options": {"include_usage": True}})
        except _REFUSED as error:
            self._explain(error)

    def _stream(self, body: dict[str, Any]) -> Iterator[Delta]:
        # ASCII: half a character, such as one of another encoding, is escaped.
        content, headers = json.dumps(body), {"Content-Type": "application/json"}
        with self._client.stream(
            "POST", "/v1/chat/completions", content=content, headers=headers
        ) as response:
            if response.is_error:
                response.read()
                raise ChatError(_message(response))
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                if data == "[DONE]":
                    return
                if data:
                    yield from _deltas(json.loads(data))
        raise ChatError("the answer broke off")

    def _explain(self, error: Exception) -> NoReturn:
        match error:
            case httpx.HTTPStatusError():
                said = _message(error.response)
            case httpx.UnsupportedProtocol():
                said = f"{self.url} is no URL, such as http://127.0.0.1:8000"
            case httpx.ConnectError() | httpx.ConnectTimeout():
                said = f"nothing answers at {self.url}; `quire up` starts a server"
            case httpx.HTTPError():
                said = f"the connection to {self.url} failed: {error or type(error).__name__}"
            case _:
                said = f"what {self.url} answers is not what an OpenAI-compatible server says: {error!r}"
        raise ChatError(said) from error


def _deltas(event: Any) -> Iterator[Delta]:
    """What one event of the stream adds. Raises `ChatError` for an error in it."""
    if "error" in event:
        raise ChatError(str(event["error"]["message"]))
    for choice in event["choices"]:
        delta = choice["delta"]
        yield Delta(
            text=delta.get("content") or "",
            thought=delta.get("reasoning_content") or delta.get("reasoning") or "",
            tool="".join(map(_call, delta.get("tool_calls") or ())),
            finish=choice.get("finish_reason") or "",
        )
    if usage := event.get("usage"):
        yield Delta(tokens=usage.get("completion_tokens") or 0)


def _call(call: Any) -> str:
    """A piece of a call as text; what has a name begins a call, on a line of its own."""
    function = call["function"]
    name = f"\n{function['name']} " if function.get("name") else ""
    return name + (function.get("arguments") or "")


def _message(response: httpx.Response) -> str:
    """What an OpenAI error object says, or else the status."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"{response.request.url} answered {response.status_code} {response.reason_phrase}"
