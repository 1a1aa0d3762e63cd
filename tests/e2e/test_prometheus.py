"""A real Prometheus reads a deployment's metrics, and the board's queries have answers."""

import json
from pathlib import Path

import httpx
import pytest

from tests.support.deployment import Deployment
from tests.support.prometheus import MISSING, WATCH, Prometheus, reading, wait_for

NOT_HERE = {
    "Drafts that held": "the text has no repetitions",
}
"""Panels without data in this deployment."""

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def test_every_panel_has_data(deployment: Deployment, tmp_path: Path) -> None:
    rules = (WATCH / "alerts.yml").read_text(encoding="utf-8")
    with reading(deployment, tmp_path, rules) as prometheus:
        every_panel_has_data(deployment, prometheus)
        (group,) = prometheus.get("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}


def every_panel_has_data(deployment: Deployment, prometheus: Prometheus) -> None:
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
            if not any(prometheus.query(expression) for expression in expressions):
                lack.add(title)
        return lack

    assert wait_for(lambda: lacking() <= NOT_HERE.keys()), lacking()
