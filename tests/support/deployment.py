"""A real deployment for tests: every service a process of its own, over a Redis server of its own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import httpx
import redis

from ops.launcher.redis_server import RedisServer, free_port

ROOT = Path(__file__).parents[2]
SHIPPED_MODEL = ROOT / "ops" / "tiny_model" / "model"
BOOKS_SECONDS = 1.5
"""By then an idle scheduler has checked its books, and logged an error if they do not balance."""
SERVICES = ("gpu_worker", "scheduler_svc", "tokenizer_svc", "gateway")


class Deployment:
    """Starts, kills and replaces the processes of one deployment; `directory` gets their logs."""

    def __init__(
        self, server: RedisServer, directory: Path, model: Path = SHIPPED_MODEL, **settings: str
    ) -> None:
        self.server = server
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.prefix = f"test-{self.port}:"
        self.model_name = "quire-tiny" if model == SHIPPED_MODEL else model.name
        self.environment = os.environ | {
            "QUIRE_REDIS_URL": server.url,
            "QUIRE_STREAM_PREFIX": self.prefix,
            "QUIRE_MODEL": str(model),
            "QUIRE_MODEL_NAME": self.model_name,
            "QUIRE_PORT": str(self.port),
            "QUIRE_KV_MEMORY": "64MiB",
            "QUIRE_LEASE_SECONDS": "1.0",
            **settings,
        }
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {service: [] for service in SERVICES}
        self.redis = redis.Redis.from_url(server.url)

    def spawn(self, service: str) -> subprocess.Popen[bytes]:
        """Start one more process of `service`."""
        with (self.directory / f"{service}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", service], env=self.environment, cwd=ROOT, stdout=log, stderr=log
            )
        self.processes[service].append(process)
        return process

    def kill(self, service: str) -> None:
        """kill -9 the oldest living process of `service`."""
        process = next(process for process in self.processes[service] if process.poll() is None)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def start(self, services: tuple[str, ...] = SERVICES, timeout: float = 120.0) -> Self:
        for service in services:
            self.spawn(service)
        self.wait_ready(timeout)
        return self

    def wait_ready(self, timeout: float = 120.0) -> None:
        """Return once the gateway says that it is ready; raise with the logs if it does not."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            for service, processes in self.processes.items():
                if processes and all(process.poll() is not None for process in processes):
                    raise AssertionError(f"{service} ended:\n{self.logs()}")
            try:
                if httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"not ready after {timeout} s:\n{self.logs()}")

    def stop(self) -> None:
        """Stop all as an operator would, from the front to the back."""
        for service in reversed(SERVICES):
            alive = [process for process in self.processes[service] if process.poll() is None]
            for process in alive:
                process.terminate()
            for process in alive:
                try:
                    process.wait(timeout=15)
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
        found = {}
        for key in self.redis.scan_iter(f"{self.prefix}calls:*"):
            for group in self.redis.xinfo_groups(key):
                if group["pending"]:
                    found[key.decode()] = group["pending"]
        return found

    def assert_clean(self, timeout: float = 5.0) -> None:
        """Nothing is pending on any door, and no process logged an error (a leaked block is one)."""
        deadline = time.monotonic() + timeout
        while self.pending() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.pending() == {}
        time.sleep(BOOKS_SECONDS)
        assert self.errors() == []


def running(server: RedisServer, directory: Path, **settings: str) -> Iterator[Deployment]:
    """A fixture's body: a started deployment of the shipped model, stopped and checked at the end."""
    deployment = Deployment(server, directory, **settings)
    try:
        yield deployment.start()
        deployment.assert_clean()
    finally:
        deployment.stop()
