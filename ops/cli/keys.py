"""`quire keys`: who may ask, and for how much."""

import argparse
import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, get_args

from ops.cli.arguments import add_command
from ops.launcher.deployments import Deployment, recorded
from ops.launcher.kept_keys import keep
from ops.runtime.api_keys import NAME, Key, Right, digest_of, new_secret
from ops.runtime.errors import LaunchError, UsageError
from ops.runtime.key_store import KeyStore
from ops.runtime.limits import Limits, LimitsError
from ops.runtime.settings import named_redis, stream_prefix
from proto.rpc import BusAway
from proto.rpc.line import Line

_DESCRIPTION = """\
Give out API keys, list them, and revoke them. Gateways know of it within a second. From the first
key on, every request needs one.

  quire keys add north                      a key for the tenant north; it is shown once
  quire keys add laptop --tenant north --days 90
  quire keys add batch --limits concurrency=4 tokens_per_minute=50000
  quire keys add watch --rights inside      may look inside
  quire keys list
  quire keys revoke laptop                  every key of that name, or the one with that id

The keys are those of the deployment that runs on this machine, or of the one at QUIRE_REDIS_URL.
"""

DAY = 86400
MOST_DAYS = 36_500
ID_LENGTH = 12
"""Digits of a key's digest that tell it from others."""


@dataclass(frozen=True)
class _Place:
    """Where a deployment keeps its keys."""

    url: str
    prefix: str
    kept_for: int | None = None
    """Port of a deployment whose Redis begins empty: its keys are kept on disk, too."""


def add_to(subcommands: Any) -> None:
    keys = add_command(subcommands, "keys", "give out and revoke API keys", _DESCRIPTION)
    _add_port(keys, None)
    actions = keys.add_subparsers(title="actions", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="make a key and show it")
    add.add_argument("name", type=_name, metavar="NAME", help="for whom or for what it is")
    add.add_argument(
        "--tenant", type=_name, metavar="T", help="on whose behalf its holder asks (default: NAME)"
    )
    add.add_argument("--days", type=float, metavar="D", help="days for which it is valid (default: for ever)")
    add.add_argument(
        "--limits", nargs="+", metavar="LIMIT=VALUE", default=[], help="in place of those in QUIRE_LIMITS"
    )
    add.add_argument(
        "--rights",
        nargs="+",
        choices=get_args(Right),
        metavar="RIGHT",
        default=[],
        help="inside: look inside the deployment; text: read there what others ask and are answered",
    )
    add.set_defaults(run=lambda arguments: _run(arguments, _add))
    show = actions.add_parser("list", help="list all keys")
    show.set_defaults(run=lambda arguments: _run(arguments, _list))
    revoke = actions.add_parser("revoke", help="revoke keys")
    revoke.add_argument("which", nargs="+", metavar="NAME_OR_ID", help="as `quire keys list` shows them")
    revoke.set_defaults(run=lambda arguments: _run(arguments, _revoke))
    for action in (add, show, revoke):
        _add_port(action, argparse.SUPPRESS)  # what is not given here leaves what was given before the action


def _add_port(parser: argparse.ArgumentParser, default: Any) -> None:
    what = "of the deployment on this port, if there are several"
    parser.add_argument("--port", type=int, metavar="P", default=default, help=what)


Action = Callable[[argparse.Namespace, KeyStore], Awaitable[None]]


def _run(arguments: argparse.Namespace, action: Action) -> int:
    place = _place(arguments.port)
    asyncio.run(_at(place, arguments, action))
    return 0


async def _at(place: _Place, arguments: argparse.Namespace, action: Action) -> None:
    store = KeyStore(Line(place.url), place.prefix)
    try:
        await action(arguments, store)
        # A deployment that has never had a key stays open, also at its next start.
        if place.kept_for is not None and await store.version() is not None:
            keep(place.kept_for, await store.records())
    except BusAway as error:
        raise LaunchError(str(error)) from None
    finally:
        store.close()


async def _add(arguments: argparse.Namespace, store: KeyStore) -> None:
    try:
        limits = Limits.parse(" ".join(arguments.limits))
    except LimitsError as error:
        raise UsageError(f"--limits: {error}") from None
    if arguments.days is not None and not 0 < arguments.days <= MOST_DAYS:
        raise UsageError(f"--days must be more than 0, and {MOST_DAYS} at most")
    now, secret = round(time.time()), new_secret()
    key = Key(
        name=arguments.name,
        tenant=arguments.tenant or arguments.name,
        created=now,
        expires=None if arguments.days is None else now + arguments.days * DAY,
        rights=frozenset(arguments.rights),
        limits=limits,
    )
    await store.add(digest_of(secret), key)
    print(secret)


async def _list(_: argparse.Namespace, store: KeyStore) -> None:
    keys = await store.read()
    rows = [("ID", "NAME", "TENANT", "CREATED", "EXPIRES", "RIGHTS", "LIMITS")]
    for digest, key in sorted(keys.items(), key=lambda item: (item[1].tenant, item[1].name, item[1].created)):
        expires = "never" if key.expires is None else _day(key.expires)
        rights = " ".join(sorted(key.rights)) or "-"
        limits = str(key.limits) or "-"
        rows.append((digest[:ID_LENGTH], key.name, key.tenant, _day(key.created), expires, rights, limits))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


async def _revoke(arguments: argparse.Namespace, store: KeyStore) -> None:
    keys = await store.read()
    found = {}
    for which in arguments.which:
        digests = [digest for digest, key in keys.items() if key.name == which or digest[:ID_LENGTH] == which]
        if not digests:
            raise UsageError(f"there is no key '{which}': `quire keys list` lists them")
        found.update(dict.fromkeys(digests))
    await store.revoke(found)
    for digest in found:
        print(f"revoked {digest[:ID_LENGTH]}  {keys[digest].name}")


def _place(port: int | None) -> _Place:
    """Where the keys are. Raises `UsageError` if that is not clear."""
    running = [one for one in recorded() if one.launcher.alive() and port in (None, one.port)]
    if len(running) > 1:
        raise UsageError(
            f"there are deployments on ports {', '.join(str(one.port) for one in running)}: say --port P"
        )
    if running:
        return _place_of(running[0])
    url = named_redis()
    if port is not None or url is None:
        raise UsageError("nothing runs here; start it with `quire up`, or set QUIRE_REDIS_URL")
    return _Place(url, stream_prefix())


def _place_of(deployment: Deployment) -> _Place:
    own = deployment.port if "redis" in deployment.processes else None
    return _Place(deployment.redis_url, deployment.stream_prefix, own)


def _name(text: str) -> str:
    if not re.fullmatch(NAME, text, re.ASCII):
        raise argparse.ArgumentTypeError("1 to 64 letters, digits and _.-")
    return text


def _day(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return f"{seconds:g}"
