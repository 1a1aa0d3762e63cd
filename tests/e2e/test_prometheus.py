"""A real Prometheus reads a deployment's metrics, and the board's queries have answers."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.deployment import ROOT, Deployment

WATCH = ROOT / "ops" / "watch"
NOT_HERE = {
    "Drafts that held": "the text has no repetitions",
}
"""Panels without data in this deployment."""

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="no prometheus (Debian's package of that name)"
)


@pytest.fixture
def prometheus(deployment: Deployment, tmp_path: Path) -> Iterator[str]:
    """The URL of one that reads the deployment every second."""
    config = yaml.safe_load((WATCH / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(WATCH / "alerts.yml")]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [deployment.url.removeprefix("http://")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    options = {
        "config.file": "prometheus.yml",
        "storage.tsdb.path": "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(60)


def query(prometheus: str, expression: str) -> list[Any]:
    """What it finds. Raises if it takes the expression for wrong."""
    answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression}, timeout=60)
    assert answer.status_code == 200, answer.text
    found: list[Any] = answer.json()["data"]["result"]
    return found


def is_up(prometheus: str) -> bool:
    """Whether it has read the deployment's metrics. While it starts it answers 503, or not at all."""
    try:
        ready = httpx.get(f"{prometheus}/-/ready", timeout=60).status_code == 200
        return ready and bool(query(prometheus, 'up{job="quire"} == 1'))
    except httpx.TransportError:
        return False


def wait_for(condition: Any) -> bool:
    deadline = time.monotonic() + 120
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return bool(met)


def test_every_panel_has_data(deployment: Deployment, prometheus: str) -> None:
    assert wait_for(lambda: is_up(prometheus))
    board = json.loads((WATCH / "grafana" / "board.json").read_text(encoding="utf-8"))
    panels = {panel["title"]: panel["targets"] for panel in board["panels"] if "targets" in panel}
    body = {"model": "quire-tiny", "prompt": "An owl", "max_tokens": 4, "n": 2, "user": "board"}

    def lacking() -> set[str]:
        """Panels of which no query has data. Asks, so that there is something to count."""
        httpx.post(f"{deployment.url}/v1/completions", json=body, timeout=60).raise_for_status()
        lack = set()
        for title, targets in panels.items():
            expressions = [
                target["expr"].replace("$__rate_interval", "1m").replace("$model_name", ".*")
                for target in targets
            ]
            if not any(query(prometheus, expression) for expression in expressions):
                lack.add(title)
        return lack

    assert wait_for(lambda: lacking() <= NOT_HERE.keys()), lacking()
    answer = httpx.get(f"{prometheus}/api/v1/rules", timeout=60).json()
    (group,) = answer["data"]["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
