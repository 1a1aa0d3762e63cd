"""`quire chat`: where it connects to; `ops.cli.chat` holds the conversation."""

import argparse
from typing import Any

import httpx

from ops.launcher.errors import LaunchError
from ops.launcher.record import recorded

_DESCRIPTION = """\
Talk to a model in the terminal; answers are streamed. By default with the deployment that
`quire up` has started on this machine.
"""


def add_to(subcommands: Any) -> None:
    chat = subcommands.add_parser(
        "chat",
        help="talk to the model in the terminal",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    chat.add_argument("--url", help="the gateway (default: the running one, else http://127.0.0.1:8000)")
    chat.add_argument("--model", help="name of the model (default: the first that is offered)")
    chat.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from ops.cli.chat import chat  # its libraries are for this command alone

    url = (arguments.url or _running_url()).rstrip("/")
    return chat(url, arguments.model or _first_model(url))


def _running_url() -> str:
    running = [found.url for found in recorded() if found.launcher.alive()]
    return running[0] if running else "http://127.0.0.1:8000"


def _first_model(url: str) -> str:
    try:
        models = httpx.get(f"{url}/v1/models", timeout=10, trust_env=False).raise_for_status().json()["data"]
        return str(models[0]["id"])
    except httpx.HTTPError as error:
        raise LaunchError(f"nothing answers at {url} ({error}); start it with `quire up`") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise LaunchError(f"{url} offers no model (yet)") from None
