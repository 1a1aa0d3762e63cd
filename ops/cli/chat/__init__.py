"""`quire chat`: a conversation in the terminal, streamed from the gateway.

session       a turn after the other: read, ask, show
prompt        where turns come from: a terminal with history and keys, or lines of a pipe
commands      what begins with a slash
conversation  messages, system prompt, model and parameters
server        an OpenAI-compatible server: its models, and an answer as deltas
screen        where answers go: Markdown in a terminal, plain text in a pipe
pace          how fast an answer came
"""

import argparse
from typing import Any

from ops.cli.arguments import add_command, add_url, gateway_url

_DESCRIPTION = """\
Talk to a model in the terminal; answers are streamed. By default with the deployment that
`quire up` has started on this machine. An API key, where one is needed, is taken from
OPENAI_API_KEY.
"""


def add_to(subcommands: Any) -> None:
    chat = add_command(subcommands, "chat", "talk to the model in the terminal", _DESCRIPTION)
    add_url(chat)
    chat.add_argument("--model", help="name of the model (default: the first that is offered)")
    chat.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ops.cli.chat.session import chat  # its libraries are for this command alone

    return chat(gateway_url(arguments.url), arguments.model)
