"""A conversation in the terminal, streamed from the gateway."""

import json
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import httpx

from ops.runtime.api_keys import authorization

HELP = "/new starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer."
TIMEOUT = httpx.Timeout(10.0, read=300.0)
"""Seconds. An answer may have to wait for its turn, or for a process that comes back."""

# An answer is text: what would steer the terminal is left out.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)}


class ChatError(Exception):
    """A turn failed; the message is one line for the person at the terminal."""


def chat(url: str, model: str | None) -> int:
    """Talk to `model` (None: the first that is offered) at the gateway `url` until the input ends.

    A line of standard input is a turn. Returns the exit status: 0, or 1 if no server answers
    or, when the input is no terminal, a turn failed.
    """
    with httpx.Client(base_url=url, headers=authorization(), timeout=TIMEOUT, trust_env=False) as client:
        try:
            conversation = Conversation(client, model or first_model(client))
        except ChatError as error:
            return _complain(error)
        interactive = sys.stdin.isatty()
        if interactive:
            # Being imported, it gives `input` a history and line editing. Not every build has it.
            with suppress(ImportError):
                import readline  # noqa: F401
            print(f"{conversation.model} at {url}. {HELP}")
        return _talk(conversation, interactive)


class Conversation:
    """The messages so far. A turn that fails leaves them as they were."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self.model = model
        self.messages: list[dict[str, str]] = []
        self._client = client

    def say(self, text: str) -> Generator[str, None, None]:
        """The pieces of the answer to `text`. Raises `ChatError`.

        Both are remembered once the answer has ended or is closed before; then as far as it got.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        answer: list[str] = []
        try:
            for piece in self._stream(asked):
                answer.append(piece)
                yield piece
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise _explained(error, self._client) from error
        except (GeneratorExit, KeyboardInterrupt):
            self._remember(asked, answer)
            raise
        self._remember(asked, answer)

    def _stream(self, messages: list[dict[str, str]]) -> Iterator[str]:
        body = {"model": self.model, "messages": messages, "stream": True}
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.is_error:
                response.read()
                raise ChatError(_message(response))
            for line in response.iter_lines():
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                if data == "[DONE]":
                    return
                if data:
                    yield from _pieces(json.loads(data))
        raise ChatError("the answer broke off")

    def _remember(self, asked: list[dict[str, str]], answer: list[str]) -> None:
        self.messages = [*asked, {"role": "assistant", "content": "".join(answer)}]


def first_model(client: httpx.Client) -> str:
    """The first model that the gateway offers. Raises `ChatError`."""
    try:
        response = client.get("/v1/models").raise_for_status()
        offered = [str(entry["id"]) for entry in response.json()["data"]]
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise _explained(error, client) from error
    if not offered:
        raise ChatError(f"{client.base_url} offers no model (yet)")
    return offered[0]


def _talk(conversation: Conversation, interactive: bool) -> int:
    failed = 0
    for line in _lines(interactive):
        match line.strip():
            case "":
                continue
            case "/exit":
                break
            case "/new":
                conversation.messages = []
            case text:
                failed |= _turn(conversation, text)
    return 0 if interactive else failed


def _lines(interactive: bool) -> Iterator[str]:
    while True:
        try:
            yield input("> " if interactive else "")
        except EOFError:
            if interactive:
                print()
            return
        except KeyboardInterrupt:
            if not interactive:
                raise
            print(f"\n{HELP}")


def _turn(conversation: Conversation, text: str) -> int:
    """Print the answer to `text` as it comes; 1 if there is none."""
    pieces = conversation.say(text)
    try:
        for piece in pieces:
            print(piece.translate(_CONTROLS), end="", flush=True)
        print()
    except KeyboardInterrupt:
        # Raised here or where the answer is read: closed, the conversation has it as far as it got.
        pieces.close()
        print()
    except ChatError as error:
        return _complain(error)
    return 0


def _pieces(event: Any) -> Iterator[str]:
    """The text in one event of the stream. Raises `ChatError` for an error in it."""
    if "error" in event:
        raise ChatError(str(event["error"]["message"]))
    for choice in event["choices"]:
        if content := choice["delta"].get("content"):
            yield content


def _message(response: httpx.Response) -> str:
    """What an OpenAI error object says, or else the status."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"{response.request.url} answered {response.status_code} {response.reason_phrase}"


def _explained(error: Exception, client: httpx.Client) -> ChatError:
    url = str(client.base_url).rstrip("/")
    match error:
        case httpx.HTTPStatusError():
            return ChatError(_message(error.response))
        case httpx.ConnectError() | httpx.ConnectTimeout():
            return ChatError(f"nothing answers at {url}; `quire up` starts a server")
        case httpx.HTTPError():
            return ChatError(f"the connection to {url} failed: {error or type(error).__name__}")
    return ChatError(f"what {url} answers is not what an OpenAI-compatible server says: {error!r}")


def _complain(error: ChatError) -> int:
    sys.stdout.flush()
    print(f"quire chat: {error}", file=sys.stderr)
    return 1
