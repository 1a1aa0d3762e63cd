"""A real Prometheus that reads one deployment every second."""

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.deployment import ROOT, Deployment

WATCH = ROOT / "ops" / "watch"
MISSING = "" if shutil.which("prometheus") else "no prometheus (Debian's package of that name)"


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer. Raises if it takes an expression for wrong."""
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[Any]:
        """What an expression finds now."""
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def firing(self) -> set[str]:
        """The names of the alerts that fire."""
        alerts = self.get("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def is_up(self) -> bool:
        """Whether it has read the deployment's metrics. While it starts it answers 503, or not at all."""
        try:
            ready = httpx.get(f"{self.url}/-/ready", timeout=60).status_code == 200
            return ready and bool(self.query('up{job="quire"} == 1'))
        except httpx.TransportError:
            return False


@contextmanager
def reading(deployment: Deployment, directory: Path, rules: str) -> Iterator[Prometheus]:
    """A Prometheus with these rules, which keeps what it reads in `directory`."""
    config = yaml.safe_load((WATCH / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = ["rules.yml"]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [deployment.url.removeprefix("http://")]
    (directory / "rules.yml").write_text(rules, encoding="utf-8")
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = {
        "config.file": "prometheus.yml",
        "storage.tsdb.path": "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        assert wait_for(prometheus.is_up), (directory / "prometheus.log").read_text()
        yield prometheus
    finally:
        process.kill()
        process.wait(60)


def wait_for(condition: Callable[[], object], seconds: float = 120.0) -> bool:
    """Whether it came to be within this time."""
    deadline = time.monotonic() + seconds
    while not (met := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.5)
    return met
