"""What a line that begins with a slash does."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ops.cli.chat.conversation import RESERVED, Answer, Conversation
from ops.cli.chat.errors import ChatError

KEYS = """\
Alt-Enter    begins another line; a text between two \"\"\" may have several, too
Up, Down     what was typed before
Ctrl-C       stops an answer
Ctrl-D       leaves"""


class Leave(Exception):
    """The chat is to end."""


@dataclass(frozen=True)
class Command:
    """One command: `run` returns a note for the person, or an answer to show."""

    run: Callable[[Conversation, str], str | Answer]
    arguments: str
    about: str


def command(text: str) -> tuple[Command, str] | None:
    """The command in `text` and its argument, or None if `text` is for the model. Raises `ChatError`."""
    match = re.fullmatch(r"/([a-z]+)(?:\s+(.*))?", text.rstrip(), re.DOTALL)
    if match is None:
        return None
    if match[1] not in COMMANDS:
        raise ChatError(f"there is no command /{match[1]}; /help lists them (a space before it sends it)")
    return COMMANDS[match[1]], match[2] or ""


def _help(conversation: Conversation, rest: str) -> str:
    usages = [(f"/{name} {each.arguments}".rstrip(), each.about) for name, each in COMMANDS.items()]
    width = max(len(usage) for usage, _ in usages)
    return "\n".join([*(f"{usage:{width}}  {about}" for usage, about in usages), "", KEYS])


def _new(conversation: Conversation, rest: str) -> str:
    conversation.start_over()
    return "a new conversation"


def _retry(conversation: Conversation, rest: str) -> Answer:
    return conversation.retry()


def _system(conversation: Conversation, rest: str) -> str:
    conversation.system = rest
    return f"system prompt: {rest}" if rest else "no system prompt"


def _model(conversation: Conversation, rest: str) -> str:
    offered = conversation.server.models()
    if rest and rest not in offered:
        raise ChatError(f"there is no model {rest}; offered: {', '.join(offered)}")
    conversation.model = rest or conversation.model
    if rest:
        return f"model: {rest}"
    return "\n".join(f"{'*' if name == conversation.model else ' '} {name}" for name in offered)


def _set(conversation: Conversation, rest: str) -> str:
    name, _, value = rest.partition(" ")
    if name in RESERVED:
        raise ChatError(f"{name} cannot be set here")
    if name and value.strip():
        conversation.parameters[name] = _value(value.strip())
    else:
        conversation.parameters.pop(name, None)
    values = [f"{name} {json.dumps(value)}" for name, value in conversation.parameters.items()]
    return "\n".join(values) or "all parameters are the server's defaults"


def _value(text: str) -> object:
    """JSON, or a text that needs no quotes."""
    try:
        value: object = json.loads(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return text
    return value


def _save(conversation: Conversation, rest: str) -> str:
    path = _path(rest, "/save")
    conversation.save(path)
    return f"saved: {path}"


def _load(conversation: Conversation, rest: str) -> str:
    conversation.load(_path(rest, "/load"))
    return f"{len(conversation.messages)} messages"


def _path(text: str, name: str) -> Path:
    if not text:
        raise ChatError(f"{name} needs the name of a file")
    try:
        return Path(text).expanduser()
    except RuntimeError:  # there is no such user
        return Path(text)


def _quit(conversation: Conversation, rest: str) -> str:
    raise Leave


COMMANDS = {
    "help": Command(_help, "", "this list"),
    "new": Command(_new, "", "start over; model, system prompt and parameters stay"),
    "retry": Command(_retry, "", "another answer to the latest question"),
    "system": Command(_system, "TEXT", "what every conversation begins with; without TEXT nothing"),
    "model": Command(_model, "NAME", "talk to another model; without NAME list them"),
    "set": Command(_set, "NAME VALUE", "a parameter such as temperature 0.5; without VALUE the default"),
    "save": Command(_save, "FILE", "write the conversation to a new file, as the body of a request"),
    "load": Command(_load, "FILE", "go on with a conversation that was saved"),
    "quit": Command(_quit, "", "leave; /exit, too"),
    "exit": Command(_quit, "", "leave"),
}
