"""A turn after the other: read, ask, show."""

import sys
from collections.abc import Iterable

import httpx

from ops.cli.chat.commands import COMMANDS, Leave, command
from ops.cli.chat.conversation import Answer, Conversation
from ops.cli.chat.errors import ChatError
from ops.cli.chat.prompt import lines, typed
from ops.cli.chat.screen import PlainScreen, Screen, TerminalScreen, terminal
from ops.cli.chat.server import TIMEOUT, Server
from ops.launcher.deployments import state_directory
from ops.runtime.api_keys import authorization

HINT = "/help lists the commands, Ctrl-D leaves."


def chat(url: str, model: str | None) -> int:
    """Talk to `model` (None: the first that is offered) at the gateway `url` until the input ends.

    Returns the exit status: 0, or 1 if no server answers or, when the input is no terminal, a turn failed.
    """
    with httpx.Client(base_url=url, headers=authorization(), timeout=TIMEOUT, trust_env=False) as client:
        server = Server(client)
        try:
            conversation = Conversation(server, model or server.models()[0])
        except ChatError as error:
            return _complain(error)
        console = terminal()
        if console is None:
            return _talk(conversation, lines(), PlainScreen())
        screen = TerminalScreen(console)
        screen.note(f"{conversation.model} at {url}. {HINT}")
        turns = typed(
            state_directory() / "chat-history",
            words=[f"/{name}" for name in COMMANDS],
            interrupted=lambda: screen.note(HINT),
        )
        _talk(conversation, turns, screen)
        return 0


def _talk(conversation: Conversation, turns: Iterable[str], screen: Screen) -> int:
    """Answer every turn; 1 if one failed."""
    failed = 0
    for text in turns:
        if not text.strip():
            continue
        try:
            _turn(conversation, text, screen)
        except ChatError as error:
            failed = _complain(error)
        except Leave:
            break
    return failed


def _turn(conversation: Conversation, text: str, screen: Screen) -> None:
    asked = command(text)
    said = conversation.say(text) if asked is None else asked[0].run(conversation, asked[1])
    if isinstance(said, str):
        screen.note(said)
    else:
        _show(said, screen)


def _show(answer: Answer, screen: Screen) -> None:
    """Show the answer as it comes, until it ends or Ctrl-C stops it."""
    try:
        with screen.answering() as show:
            for delta in answer:
                show(delta)
    except KeyboardInterrupt:
        # Raised here or where the answer is read: closed, the conversation has it as far as it got.
        answer.close()


def _complain(error: ChatError) -> int:
    sys.stdout.flush()
    print(f"quire chat: {error}", file=sys.stderr)
    return 1
