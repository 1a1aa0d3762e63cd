"""A real deployment for tests: every service a process of its own, over a Redis server of its own."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self
from urllib.parse import quote

import httpx
import redis

from ops.bench.robust.leaks import pending_calls
from ops.launcher.acl import CHAIN, ROLES, rules
from ops.launcher.redis_server import RedisServer, free_port
from proto.rpc import Lease
from tests.support.nursery import AVAILABLE, Forked, nursery_of

ROOT = Path(__file__).parents[2]
SHIPPED_MODEL = ROOT / "ops" / "tiny_model" / "model"
BOOKS_SECONDS = 1.5
"""By then an idle scheduler has checked its books, and logged an error if they do not balance."""
SERVICES = ("gpu_worker", "scheduler_svc", "tokenizer_svc", "gateway")
NAMES = dict(zip(SERVICES, reversed(CHAIN), strict=True))
"""What each service's processes are called."""
Process = subprocess.Popen[bytes] | Forked


class Deployment:
    """Starts, kills and replaces the processes of one deployment; `directory` gets their logs."""

    def __init__(
        self, server: RedisServer, directory: Path, model: Path = SHIPPED_MODEL, **settings: str
    ) -> None:
        self.server = server
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.prefix = settings.get("QUIRE_STREAM_PREFIX", f"test-{self.port}:")
        self.model_name = "quire-tiny" if model == SHIPPED_MODEL else model.name
        self.environment = os.environ | {
            "QUIRE_STREAM_PREFIX": self.prefix,
            "QUIRE_MODEL": str(model),
            "QUIRE_MODEL_NAME": self.model_name,
            "QUIRE_PORT": str(self.port),
            "QUIRE_DTYPE": "float32",  # as transformers computes it in `oracle.py`
            "QUIRE_KV_MEMORY": "64MiB",
            "QUIRE_LEASE_SECONDS": "1.0",
            "QUIRE_THREADS": "1",  # a team waits for its slowest thread, and other tests have the cores too
            **settings,
        }
        self.processes: dict[str, list[Process]] = {service: [] for service in SERVICES}
        self.redis = redis.Redis.from_url(server.url, socket_timeout=60)
        self.redis_urls = {role: self._user(role) for role in ROLES}

    def _user(self, role: str) -> str:
        """A user of the server with the rights of a role; the URL with which it gets in."""
        name, password = f"{self.prefix}{role}", secrets.token_hex(32)
        rights = rules(role, self.prefix)
        self.redis.execute_command("ACL", "SETUSER", name, "on", f">{password}", *rights)
        self.redis.execute_command("ACL", "SAVE")  # a server that is killed comes back with them
        return self.server.address.replace("//", f"//{quote(name)}:{password}@", 1)

    def environment_of(self, service: str) -> dict[str, str]:
        """What a process of `service` is started with: every one is its own user of Redis."""
        return self.environment | {"QUIRE_REDIS_URL": self.redis_urls[NAMES[service]]}

    def spawn(self, service: str, root: Path = ROOT) -> Process:
        """Start one more process of `service`. `root`: the checkout that it runs from."""
        path, environment = self.directory / f"{service}.log", self.environment_of(service)
        if root == ROOT and AVAILABLE:
            return self.add(service, nursery_of(service).start(environment, path))
        return self.add(service, started((sys.executable, "-m", service), environment, path, root))

    def add(self, service: str, process: Process) -> Process:
        self.processes[service].append(process)
        return process

    def kill(self, service: str) -> None:
        """kill -9 the oldest living process of `service`."""
        process = next(process for process in self.processes[service] if process.poll() is None)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def replace(self, service: str, root: Path = ROOT, timeout: float = 240.0) -> None:
        """Start a new process of `service`, and when it serves ask the old ones to stop.

        Returns when they have ended. `root`: as for `spawn`.
        """
        olds = [process for process in self.processes[service] if process.poll() is None]
        self.wait_served(service, self.spawn(service, root), timeout)
        for old in olds:
            old.terminate()
        for old in olds:
            assert old.wait(timeout) == 0, f"{service} did not end well:\n{self.logs()}"

    def wait_served(self, service: str, process: Process, timeout: float = 240.0) -> None:
        """Return once a process of `service` serves."""
        deadline = time.monotonic() + timeout
        while not self._serves(process.pid):
            assert time.monotonic() < deadline, f"no new {service}:\n{self.logs()}"
            assert process.poll() is None, f"{service} ended:\n{self.logs()}"
            time.sleep(0.05)

    def _serves(self, pid: int) -> bool:
        """Whether a process is at its door, or listens if it is a gateway."""
        values = (self.redis.get(key) for key in self.redis.scan_iter(f"{self.prefix}alive:*"))
        leases = [Lease.decode("", value) for value in values if isinstance(value, bytes)]
        return any(lease and lease.pid == pid and (lease.doors or lease.info.get("url")) for lease in leases)

    def start(self, services: Sequence[str] = SERVICES, timeout: float = 240.0) -> Self:
        if AVAILABLE:
            for service in services:
                nursery_of(service)  # they import at the same time
        for service in services:
            self.spawn(service)
        self.wait_ready(timeout)
        return self

    def wait_ready(self, timeout: float = 240.0) -> None:
        """Return once the gateway says that it is ready; raise with the logs if it does not."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for service, processes in self.processes.items():
                if processes and all(process.poll() is not None for process in processes):
                    raise AssertionError(f"{service} ended:\n{self.logs()}")
            try:
                if httpx.get(f"{self.url}/health/ready", timeout=60).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"not ready after {timeout} s:\n{self.logs()}")

    def wait_for_models(self, names: set[str], timeout: float = 240.0) -> None:
        """Return once the gateway offers these models; raise with the logs if it does not."""
        deadline = time.monotonic() + timeout
        while not names <= set(httpx.get(f"{self.url}/health/ready", timeout=60).json()["models"]):
            assert time.monotonic() < deadline, f"no {names} after {timeout} s:\n{self.logs()}"
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop all as an operator would, from the front to the back."""
        for service in reversed(SERVICES):
            alive = [process for process in self.processes[service] if process.poll() is None]
            for process in alive:
                process.terminate()
            for process in alive:
                try:
                    process.wait(timeout=60)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                    raise AssertionError(f"{service} did not stop:\n{self.logs()}") from None

    def logs(self) -> str:
        """The last lines of every log."""
        tails = {
            path.name: "\n".join(path.read_text(errors="replace").splitlines()[-30:])
            for path in sorted(self.directory.glob("*.log"))
        }
        return "\n".join(f"--- {name}\n{tail}" for name, tail in tails.items())

    def errors(self) -> list[str]:
        """Lines that a process logged as an error."""
        return [
            line
            for path in sorted(self.directory.glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()
            if " ERROR " in line or "Traceback" in line
        ]

    def pending(self) -> dict[str, int]:
        """Entries that were taken from a door and never acknowledged, by door."""
        return pending_calls(self.redis, self.prefix)

    def assert_clean(self, timeout: float = 60.0) -> None:
        """Nothing is pending on any door, and no process logged an error (a leaked block is one)."""
        deadline = time.monotonic() + timeout
        while self.pending() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.pending() == {}
        time.sleep(BOOKS_SECONDS)
        assert self.errors() == []


def started(
    command: tuple[str, ...], environment: dict[str, str], log: Path, root: Path = ROOT
) -> subprocess.Popen[bytes]:
    """A process whose output is added to `log`."""
    with log.open("ab") as file:
        return subprocess.Popen(command, env=environment, cwd=root, stdout=file, stderr=file)


def running(server: RedisServer, directory: Path, **settings: str) -> Iterator[Deployment]:
    """A fixture's body: a started deployment of the shipped model, stopped and checked at the end."""
    deployment = Deployment(server, directory, **settings)
    try:
        yield deployment.start()
        deployment.assert_clean()
    finally:
        deployment.stop()
