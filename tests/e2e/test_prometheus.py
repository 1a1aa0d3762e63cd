"""A real Prometheus reads a deployment's metrics, and the board's queries have answers."""

import json
from pathlib import Path

import httpx
import pytest

from tests.support.deployment import Deployment
from tests.support.prometheus import MISSING, WATCH, Prometheus, reading, wait_for

NOT_HERE = {
    "Drafts that held": "the text has no repetitions",
    "Time of an image in the vision tower, mean": "the shipped model sees nothing",
}
"""Panels without data in this deployment."""
OF_VLLM = {
    'histogram_quantile(0.9, sum by (le) (rate(vllm:{}_bucket{{model_name="quire-tiny"}}[1m]))) >= 0': (
        *("e2e_request_latency_seconds", "time_to_first_token_seconds", "time_per_output_token_seconds"),
        *("inter_token_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds"),
        *("request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens"),
        *("request_generation_tokens", "request_max_num_generation_tokens", "iteration_tokens_total"),
    ),
    'rate(vllm:{}_total{{model_name="quire-tiny"}}[1m]) > 0': (
        *("prompt_tokens", "generation_tokens", "request_success", "prefix_cache_queries"),
    ),
    'vllm:{}{{model_name="quire-tiny"}} >= 0': (
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "gpu_cache_usage_perc"),
    ),
}
"""What the board asks that vLLM publishes, by the form of the query."""

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def test_every_panel_has_data(deployment: Deployment, tmp_path: Path) -> None:
    rules = (WATCH / "alerts.yml").read_text(encoding="utf-8")
    with reading(deployment, tmp_path, rules) as prometheus:
        every_panel_has_data(deployment, prometheus)
        (group,) = prometheus.get("rules")["groups"]
        assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}


def every_panel_has_data(deployment: Deployment, prometheus: Prometheus) -> None:
    board = json.loads((WATCH / "grafana" / "board.json").read_text(encoding="utf-8"))
    panels = {
        panel["title"]: [target["expr"] for target in panel["targets"]]
        for panel in board["panels"]
        if "targets" in panel
    }
    panels |= {name: [form.format(name)] for form, names in OF_VLLM.items() for name in names}
    body = {"model": "quire-tiny", "prompt": "An owl", "max_tokens": 4, "n": 2, "user": "board"}

    def lacking() -> set[str]:
        """Panels of which no query has data. Asks, so that there is something to count."""
        httpx.post(f"{deployment.url}/v1/completions", json=body, timeout=60).raise_for_status()
        lack = set()
        for title, asked in panels.items():
            expressions = [
                expression.replace("$__rate_interval", "1m").replace("$model_name", ".*")
                for expression in asked
            ]
            if not any(prometheus.query(expression) for expression in expressions):
                lack.add(title)
        return lack

    assert wait_for(lambda: lacking() <= NOT_HERE.keys()), lacking()
