"""Reads what a gateway tells of the inside of its deployment, and shows it until Ctrl-C."""

import json
import sys
import time
from collections.abc import Iterator

import httpx
from rich.console import Console
from rich.live import Live

from gateway.upstream.picture import Change
from ops.cli.top.view import View
from ops.runtime.api_keys import authorization
from ops.runtime.errors import LaunchError

AGAIN_SECONDS = 1.0
DRAWINGS = 4
"""A second."""
WHOLE_SECONDS = 5.0
"""Time that all schedulers may take to tell how things are."""
TIMEOUT = httpx.Timeout(10.0, read=45.0)
"""Seconds. While nothing happens, the gateway sends a comment every 15."""


class _Failed(LaunchError):
    """The gateway, or a proxy before it, cannot answer now."""


def follow(url: str, once: bool) -> int:
    """Show what goes on behind the gateway `url`, live on a terminal. Raises `LaunchError`."""
    console = Console()
    once = once or console.is_dumb_terminal or not sys.stdout.isatty()  # whatever FORCE_COLOR says
    view = View(url, live=not once)
    with httpx.Client(base_url=url, headers=authorization(), timeout=TIMEOUT, trust_env=False) as client:
        if once:
            return _show_once(client, view, console)
        _changes_or_raise(client)  # before the screen is taken
        with Live(view, console=console, screen=True, refresh_per_second=DRAWINGS):
            while True:
                try:
                    for change in changes(client):
                        view.apply(change, time.monotonic())
                except (httpx.TransportError, _Failed):
                    view.away = True
                time.sleep(AGAIN_SECONDS)


def _show_once(client: httpx.Client, view: View, console: Console) -> int:
    """Show how things are; the exit status is 0 if all schedulers have told it."""
    end = time.monotonic() + WHOLE_SECONDS
    client.timeout = httpx.Timeout(WHOLE_SECONDS)
    try:
        for change in changes(client):
            view.apply(change, time.monotonic())
            if view.whole or time.monotonic() > end:
                break
    except httpx.ReadTimeout:
        pass
    except httpx.TransportError as error:
        raise _nobody(client, error) from None
    console.print(view)
    return 0 if view.whole else 1


def _changes_or_raise(client: httpx.Client) -> None:
    """Raise `LaunchError` if there is nobody who tells."""
    try:
        next(changes(client), None)
    except httpx.TransportError as error:
        raise _nobody(client, error) from None


def _nobody(client: httpx.Client, error: httpx.TransportError) -> LaunchError:
    return LaunchError(f"no server answers at {client.base_url}: {error}; `quire up` starts one")


def changes(client: httpx.Client) -> Iterator[Change]:
    """What the gateway tells, from the beginning. Raises `LaunchError` if it refuses."""
    with client.stream("GET", "/v1/inside") as response:
        if response.is_error:
            response.read()
            raise (_Failed if response.is_server_error else LaunchError)(_reason(response))
        for line in response.iter_lines():
            if line.startswith("data: "):
                yield json.loads(line.removeprefix("data: "))


def _reason(response: httpx.Response) -> str:
    """Why the gateway refuses. Another server may answer with anything."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"{response.url} answers with status {response.status_code}"
