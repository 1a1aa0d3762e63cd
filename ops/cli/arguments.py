"""Commands, and kinds of arguments that several of them take."""

import argparse
from typing import Any

import httpx

from ops.launcher.deployments import recorded
from ops.runtime.errors import UsageError


def add_command(subcommands: Any, name: str, help: str, description: str) -> argparse.ArgumentParser:
    """Add a command. Its description is shown as it is, line breaks included."""
    form = argparse.RawDescriptionHelpFormatter
    added: argparse.ArgumentParser = subcommands.add_parser(
        name, help=help, description=description, formatter_class=form
    )
    return added


def add_url(command: argparse.ArgumentParser) -> None:
    """The gateway that a command asks: see `gateway_url`."""
    command.add_argument("--url", help="the gateway (default: the running one, else http://127.0.0.1:8000)")


def gateway_url(given: str | None) -> str:
    """`--url`, also as clients of OpenAI's API have it, with /v1; or else where a deployment of this machine
    answers; the default address if none runs. Raises `UsageError` for what is no URL."""
    if given:
        try:
            httpx.URL(given)
        except httpx.InvalidURL as error:
            raise UsageError(f"--url {given}: {error}") from None
        return given.rstrip("/").removesuffix("/v1")
    running = [found.url for found in recorded() if found.launcher.alive()]
    return running[0] if running else "http://127.0.0.1:8000"


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, with commas between them."""
    return tuple(map(positive, text.split(",")))


def span(text: str) -> tuple[int, int]:
    """The least and the most, as N:M, or N for both."""
    least, _, most = text.partition(":")
    ends = positive(least), positive(most or least)
    if ends[0] > ends[1]:
        raise argparse.ArgumentTypeError("the least first, then the most")
    return ends
