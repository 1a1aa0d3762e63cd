"""The messages so far, and what goes along with each question."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from ops.cli.chat.errors import ChatError
from ops.cli.chat.server import Delta, Server

Answer = Generator[Delta, None, None]
Message = dict[str, str]

RESERVED = frozenset({"model", "messages", "stream", "stream_options", "n"})
"""Fields of a request that the conversation itself fills in, or could not show."""


class Conversation:
    """A turn that fails leaves the messages as they were. Every method raises `ChatError`."""

    def __init__(self, server: Server, model: str) -> None:
        self.server = server
        self.model = model
        self.system = ""
        self.parameters: dict[str, Any] = {}
        """Fields of every request; for what is not here the server has defaults."""
        self.messages: list[Message] = []
        self._asked: list[Message] = []

    def say(self, text: str) -> Answer:
        """The answer to `text`.

        Both are remembered once the answer has ended or is closed before; then as far as it got.
        """
        return self._answer([*self.messages, {"role": "user", "content": text}])

    def retry(self) -> Answer:
        """Another answer to the latest question, in place of the one that it had."""
        if not self._asked:
            raise ChatError("there is no question yet")
        return self._answer(self._asked)

    def start_over(self) -> None:
        """Forget the messages. Model, system prompt and parameters stay."""
        self.messages, self._asked = [], []

    def request(self, messages: list[Message]) -> dict[str, Any]:
        """The body of a request for an answer to `messages`."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, **self.parameters, "messages": [*system, *messages]}

    def save(self, path: Path) -> None:
        """Write the conversation to a new file, as the body of a request."""
        try:
            with path.open("x", encoding="utf-8", errors="replace") as file:
                json.dump(self.request(self.messages), file, indent=2, ensure_ascii=False)
        except (OSError, ValueError) as error:
            raise ChatError(f"cannot write {path}: {_reason(error)}") from None

    def load(self, path: Path) -> None:
        """Go on with what `save` has written; the model stays as it is."""
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except (OSError, ValueError) as error:
            raise ChatError(f"cannot read {path}: {_reason(error)}") from None
        try:
            body = json.loads(text)
            json.dumps(body, allow_nan=False)
            messages = [
                {"role": str(each["role"]), "content": str(each["content"])} for each in body["messages"]
            ]
            parameters = {name: value for name, value in body.items() if name not in RESERVED}
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            raise ChatError(f"{path} is not a conversation that /save has written") from None
        begins = messages[:1] if messages and messages[0]["role"] == "system" else []
        self.system = begins[0]["content"] if begins else ""
        self.messages, self.parameters = messages[len(begins) :], parameters
        last_question = max((i for i, each in enumerate(self.messages) if each["role"] == "user"), default=-1)
        self._asked = self.messages[: last_question + 1]

    def _answer(self, asked: list[Message]) -> Answer:
        self._asked = asked
        text: list[str] = []
        try:
            for delta in self.server.answer(self.request(asked)):
                text.append(delta.text)
                yield delta
        except (GeneratorExit, KeyboardInterrupt):
            if any(text):
                self._remember(asked, text)
            raise
        self._remember(asked, text)

    def _remember(self, asked: list[Message], text: list[str]) -> None:
        self.messages = [*asked, {"role": "assistant", "content": "".join(text)}]


def _reason(error: OSError | ValueError) -> str:
    """Why a file cannot be opened; `ValueError` is of a name that no file can have."""
    return (error.strerror or "") if isinstance(error, OSError) else f"{error}"
