"""`quire chat`: where it connects to; `ops.cli.chat` holds the conversation."""

import argparse
from typing import Any

from ops.cli.arguments import add_command
from ops.launcher.deployments import recorded

_DESCRIPTION = """\
Talk to a model in the terminal; answers are streamed. By default with the deployment that
`quire up` has started on this machine. An API key, where one is needed, is taken from
OPENAI_API_KEY.
"""


def add_to(subcommands: Any) -> None:
    chat = add_command(subcommands, "chat", "talk to the model in the terminal", _DESCRIPTION)
    chat.add_argument("--url", help="the gateway (default: the running one, else http://127.0.0.1:8000)")
    chat.add_argument("--model", help="name of the model (default: the first that is offered)")
    chat.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ops.cli.chat import chat  # its libraries are for this command alone

    return chat(gateway_url(arguments.url), arguments.model)


def gateway_url(given: str | None) -> str:
    """`--url`, also as clients of OpenAI's API have it, with /v1; or else where a deployment of this machine
    answers; the default address if none runs."""
    if given:
        return given.rstrip("/").removesuffix("/v1")
    running = [found.url for found in recorded() if found.launcher.alive()]
    return running[0] if running else "http://127.0.0.1:8000"
