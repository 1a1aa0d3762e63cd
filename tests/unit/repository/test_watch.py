"""What watches a deployment asks for metrics that there are, and its alerts fire on their faults."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from ops.runtime.exposition import expose
from ops.runtime.metric_names import BY_NAME
from ops.runtime.metrics import Metrics

ROOT = Path(__file__).parents[3]
WATCH = ROOT / "ops" / "watch"
SERIES = {
    name + suffix
    for name, metric in BY_NAME.items()
    for suffix in {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[
        metric.kind
    ]
}


def named(text: str) -> set[str]:
    return set(re.findall(r"(?:vllm|quire):[a-z0-9_]+", text))


@pytest.mark.parametrize("name", ["alerts.yml", "alerts_test.yml", "grafana/board.json"])
def test_every_query_names_series_that_exist(name: str) -> None:
    found = named((WATCH / name).read_text(encoding="utf-8"))
    assert len(found) > 8
    assert found <= SERIES


def test_every_alert_is_tried_and_explained() -> None:
    (group,) = yaml.safe_load((WATCH / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    alerts = {rule["alert"] for rule in group["rules"]}
    tried = yaml.safe_load((WATCH / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    fired = {one["alertname"] for test in tried for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert fired == alerts
    guide = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    assert alerts == set(re.findall(r"^\| `(Quire\w+)` \|", guide, re.MULTILINE))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool (Debian's package prometheus)")
@pytest.mark.parametrize(
    "arguments", [("check", "config", "prometheus.yml"), ("test", "rules", "alerts_test.yml")]
)
def test_prometheus_takes_them(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *arguments], cwd=WATCH, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_points_of_the_board_lead_to_traces_by_the_label_that_values_have() -> None:
    panels = json.loads((WATCH / "grafana" / "board.json").read_text(encoding="utf-8"))["panels"]
    asked = [target for panel in panels for target in panel.get("targets", []) if target.get("exemplar")]
    assert len(asked) == 2
    assert all("_bucket" in target["expr"] for target in asked), "only histograms have exemplars"
    (source,) = yaml.safe_load((WATCH / "grafana" / "source.yml").read_text(encoding="utf-8"))["datasources"]
    (link,) = source["jsonData"]["exemplarTraceIdDestinations"]
    metrics = Metrics()
    metrics.histogram(BY_NAME["vllm:e2e_request_latency_seconds"], "m").observe(0.2, 7)
    body, _ = expose({"gateway-1": metrics.snapshot()}, "application/openmetrics-text")
    assert f'{link["name"]}="{7:032x}"'.encode() in body
    assert link["url"].startswith("http://127.0.0.1:${JAEGER_PORT}/trace/")
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
    port = services["grafana"]["environment"]["JAEGER_PORT"]
    assert services["jaeger"]["ports"] == [f"127.0.0.1:{port}:16686"]


def test_the_board_has_a_place_for_each_panel() -> None:
    panels = json.loads((WATCH / "grafana" / "board.json").read_text(encoding="utf-8"))["panels"]
    taken = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
    assert len({panel["title"] for panel in panels}) == len(panels)
