"""`python -m ops.runtime.health SERVICE`: exit status 0 if this machine's process of that service is well.

It is well if it holds a lease with a door, where it takes calls, and the gateway if it answers HTTP. While a
process loads a model it holds a lease and has no door. For the health checks of containers, where a machine
has one process. An engine starts this again and again, and most of what that costs is imports: so it speaks
to Redis and to the gateway by itself, and imports next to nothing.

With `--end-after N` a process that had a lease once, and has none N times in a row and for a minute, is
killed, so that it is started again. So is a gateway that does not answer. It does not count when Redis is
away or takes no writes, for then nobody can hold a lease, nor that a process has no door.
"""

import argparse
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn, Self
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

from proto.redis_url import Sentinels, at

SERVICES = ("gateway", "tokenizer", "scheduler", "worker")
TIMEOUT = 3.0
"""Seconds for each answer of Redis, and for the gateway's."""
SENTINEL_TIMEOUT = 1.0
"""Seconds for each answer of a Sentinel. They are asked in turn, and an engine ends a check after ten."""
PATIENCE = 60.0
"""Seconds from the first failed check until a process is killed, however often it is checked. The process's
own watchdog gives it as long."""

Command = tuple[str, ...]


class Unwell(Exception):
    """The process is not well; the message is one line."""


class NotReady(Exception):
    """The process lives and takes no calls: it loads a model, or stops. The message is one line."""

    def __init__(self, pid: int, message: str) -> None:
        super().__init__(message)
        self.pid = pid


class RedisProblem(Exception):
    """Nothing can be said about the process. The message is one line."""


def check(service: str, environment: Mapping[str, str] = os.environ) -> int:
    """The number of this machine's process of the service. Raises `Unwell`, `NotReady`, `RedisProblem`."""
    pid = _holder(service, environment)
    if service == "gateway":
        _ask_gateway(
            environment.get("QUIRE_HOST") or "127.0.0.1", int(environment.get("QUIRE_PORT") or "8000")
        )
    return pid


def _holder(service: str, environment: Mapping[str, str]) -> int:
    """The number of the process of this machine that holds a lease. Raises as `check`."""
    prefix, host = environment.get("QUIRE_STREAM_PREFIX") or "quire:", socket.gethostname()
    try:
        everyone: Command = ("SMEMBERS", f"{prefix}processes")
        ca_file = environment.get("QUIRE_REDIS_CA_FILE")
        with closing(_server_of(everyone, _url(environment), ca_file)) as redis:
            (members,) = _execute(redis, everyone)
            ids = [
                name for one in members if (name := one.decode(errors="replace")).startswith(f"{service}-")
            ]
            leases = _execute(redis, ("MGET", *(f"{prefix}alive:{one}" for one in ids)))[0] if ids else []
            for lease in leases:
                with suppress(ValueError, TypeError, LookupError):  # it has run out, or is no lease
                    fields = json.loads(lease)
                    if (fields["service"], fields["host"]) == (service, host):
                        pid = int(fields["pid"])
                        if service == "gateway" or fields["doors"]:
                            return pid
                        raise NotReady(pid, f"the {service} on {host} takes no calls: it starts, or stops")
            # A Redis that is full, or cannot write its disk, lets nobody take a lease.
            _execute(redis, ("SET", f"{prefix}alive:{service}-health", "", "PX", "1"))
    except (OSError, hiredis.HiredisError, ValueError) as error:
        raise RedisProblem(f"Redis: {error}") from None
    raise Unwell(f"no {service} on {host} holds a lease")


def _url(environment: Mapping[str, str]) -> str:
    """The Redis that the process uses, read as its settings read it."""
    if path := environment.get("QUIRE_REDIS_URL_FILE"):
        return Path(path).read_text(encoding="utf-8").strip()
    return environment.get("QUIRE_REDIS_URL") or "redis://127.0.0.1:6379/0"


def _server_of(command: Command, url: str, ca_file: str | None) -> socket.socket:
    """A connection to the server that carries out a command. In a cluster it may not be the URL's."""
    sentinels = Sentinels.of(url)
    url = url if sentinels is None else _primary(sentinels, ca_file)
    redis = _connect(url, ca_file)
    try:
        _execute(redis, command)
    except BaseException as error:
        redis.close()
        kind, _, place = str(error).partition(" ")
        if not (isinstance(error, hiredis.ReplyError) and kind == "MOVED"):
            raise
        host, _, port = place.partition(" ")[2].rpartition(":")
        return _connect(at(url, host or urlsplit(url).hostname or "", port), ca_file)
    return redis


def _primary(sentinels: Sentinels, ca_file: str | None) -> str:
    """The primary's URL, as the first of the Sentinels has it that answers. Raises as `_execute`."""
    problem: Exception = OSError(f"no Sentinel knows {sentinels.name!r}")
    for url in sentinels.urls:
        try:
            with closing(_connect(url, ca_file, SENTINEL_TIMEOUT)) as sentinel:
                if found := sentinels.primary(_execute(sentinel, sentinels.question)[0]):
                    return found
        except (OSError, hiredis.HiredisError) as error:
            problem = error
    raise problem


def _connect(url: str, ca_file: str | None, timeout: float = TIMEOUT) -> socket.socket:
    """A connection to the Redis at a URL of redis-py, with user and database. Raises as `_execute`.

    `timeout`: seconds for each answer.
    """
    parts = urlsplit(url)
    options = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if parts.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        connection.connect(unquote(parts.path))
    else:
        connection = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 6379), timeout)
    if parts.scheme == "rediss":
        connection = _secured(connection, parts.hostname or "", options, ca_file)
    user = unquote(parts.username or "") or options.get("username", "")
    password = unquote(parts.password or "") or options.get("password", "")
    commands: list[Command] = [("AUTH", user or "default", password)] if user or password else []
    database = options.get("db") or (parts.path.strip("/") if parts.scheme != "unix" else "")
    if database not in ("", "0"):
        commands.append(("SELECT", database))
    try:
        _execute(connection, *commands)
    except BaseException:
        connection.close()
        raise
    return connection


def _secured(
    connection: socket.socket, host: str, options: Mapping[str, str], ca_file: str | None
) -> socket.socket:
    import ssl  # for a Redis over TLS alone

    context = ssl.create_default_context(cafile=ca_file or options.get("ssl_ca_certs"))
    if options.get("ssl_cert_reqs") == "none":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if own := options.get("ssl_certfile"):
        context.load_cert_chain(own, options.get("ssl_keyfile"))
    return context.wrap_socket(connection, server_hostname=host)


def _execute(connection: socket.socket, *commands: Command) -> list[Any]:
    """Replies of Redis. Raises `OSError`, `hiredis.HiredisError`, also for an error that it answers."""
    connection.sendall(b"".join(map(hiredis.pack_command, commands)))  # type: ignore[arg-type]
    reader, replies = hiredis.Reader(), list[Any]()
    while len(replies) < len(commands):
        received = connection.recv(2**16)
        if not received:
            raise ConnectionError("the connection was closed")
        reader.feed(received)
        while reader.has_data() and (reply := reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise reply
            replies.append(reply)
    return replies


def _ask_gateway(host: str, port: int) -> None:
    """Raises `Unwell` unless the gateway says that it lives."""
    where = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    name = f"[{where}]:{port}" if ":" in where else f"{where}:{port}"
    request = f"GET /health/live HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection((where, port), TIMEOUT) as connection:
            connection.sendall(request.encode())
            status = connection.recv(64).decode("latin-1").partition("\r\n")[0]
    except OSError as error:
        raise Unwell(f"http://{name}/health/live: {error}") from None
    if status.split()[1:2] != ["200"]:
        raise Unwell(f"http://{name}/health/live answers {status!r}")


@dataclass(frozen=True)
class _Memory:
    """What a check leaves for the next one: the process that lived, and how many checks failed since."""

    pid: int = 0
    """0: none lived yet."""
    started: str = ""
    failed: int = 0
    since: float = 0.0
    """When the first of them failed, by the monotonic clock."""

    @classmethod
    def of(cls, service: str) -> Self:
        try:
            pid, failed, since, started = _file(service).read_text().split(" ", 3)
            return cls(int(pid), started, int(failed), float(since))
        except (OSError, ValueError):
            return cls()

    def keep(self, service: str) -> None:
        _file(service).write_text(f"{self.pid} {self.failed} {self.since} {self.started}")


def _file(service: str) -> Path:
    return Path(tempfile.gettempdir()) / f"quire-health-{service}"


def _alive(service: str, pid: int) -> None:
    """Remember that the process lived."""
    before = _Memory.of(service)
    if (before.pid, before.failed) != (pid, 0):
        from ops.runtime.identity import Identity  # needed seldom

        _Memory(pid, Identity.of(pid).started).keep(service)


def _unwell(service: str, end_after: int) -> str:
    """Count a failed check, and end the process if there were enough. Returns what was done, in words."""
    before = _Memory.of(service)
    if not before.pid:
        return ""  # it may be importing its libraries
    failed, now = before.failed + 1, time.monotonic()
    since = before.since if before.failed else now
    if failed < end_after or now < since + PATIENCE:
        replace(before, failed=failed, since=since).keep(service)
        return ""
    from ops.runtime.identity import Identity  # needed seldom

    _file(service).unlink(missing_ok=True)
    process = Identity(before.pid, before.started)
    if not process.alive():
        return ""
    process.end(signal.SIGKILL, TIMEOUT)
    return f"; process {before.pid} is ended after {failed} checks"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(
        prog="python -m ops.runtime.health",
        description="Whether this machine's process of a service is well.",
    )
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument(
        "--end-after",
        type=int,
        metavar="N",
        help="kill a process that had a lease once and has had none for N checks in a row, and for a minute",
    )
    options = parser.parse_args(arguments)
    try:
        pid = check(options.service)
        if options.end_after is not None:
            _alive(options.service, pid)
    except NotReady as problem:
        if options.end_after is not None:
            _alive(options.service, problem.pid)
        sys.exit(str(problem))
    except Unwell as problem:
        done = "" if options.end_after is None else _unwell(options.service, options.end_after)
        sys.exit(f"{problem}{done}")
    except RedisProblem as problem:
        sys.exit(str(problem))
    sys.exit(0)


if __name__ == "__main__":
    main()
