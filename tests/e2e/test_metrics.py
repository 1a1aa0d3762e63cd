"""/metrics of a deployment: what its processes have measured of requests that were made."""

import time

import httpx
from prometheus_client.parser import text_string_to_metric_families as families

from tests.support.deployment import Deployment


def metrics(deployment: Deployment) -> dict[str, float]:
    """Sums over labels and processes."""
    answer = httpx.get(f"{deployment.url}/metrics", timeout=60)
    assert answer.status_code == 200, answer.text
    sums: dict[str, float] = {}
    for family in families(answer.text):
        for sample in family.samples:
            if not sample.name.endswith("_bucket"):
                sums[sample.name] = sums.get(sample.name, 0) + sample.value
    return sums


def test_what_was_asked_is_counted_by_each_process(deployment: Deployment) -> None:
    body = {
        "model": "quire-tiny",
        "prompt": "Once there was an owl",
        "max_tokens": 5,
        "ignore_eos": True,
        "n": 2,
    }
    before = metrics(deployment)
    usage = httpx.post(f"{deployment.url}/v1/completions", json=body, timeout=60).json()["usage"]
    shape = {"enum": ["It is the birthday of the owl, and all of its friends are here."]}
    chat = {
        "model": "quire-tiny",
        "temperature": 0,
        "messages": [{"role": "user", "content": "Give me JSON."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": shape}},
    }
    httpx.post(f"{deployment.url}/v1/chat/completions", json=chat, timeout=60).raise_for_status()
    wanted = {
        "vllm:prompt_tokens_total": usage["prompt_tokens"],
        "vllm:generation_tokens_total": 10,
        "vllm:request_success_total": 2,
        "vllm:e2e_request_latency_seconds_count": 1,
        "vllm:time_to_first_token_seconds_count": 1,
        "vllm:request_queue_time_seconds_count": 1,
        "vllm:request_inference_time_seconds_count": 1,
        "vllm:prefix_cache_queries_total": usage["prompt_tokens"],
        "quire:forks_total": 1,
        "quire:door_wait_seconds_count": 4,
        "quire:masked_rows_total": 3,
        "quire:forced_tokens_total": 2,  # a run; how many more, what a step costs decides
    }
    deadline = time.monotonic() + 60
    while True:
        found = metrics(deployment)
        grown = {name: found.get(name, 0) - before.get(name, 0) for name in wanted}
        # More, if the snapshot before was of a moment in which an earlier test was not counted yet.
        lacking = {name for name, least in wanted.items() if grown[name] < least}
        if not lacking or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    assert not lacking
    assert found["quire:process_cpu_seconds_total"] > 0
    assert found["quire:workers"] == 1
    assert found["quire:door_calls"] >= 1, "a call of the scheduler's waits for one more worker"
    assert found["quire:process_start_time_seconds"] > 4e9, "of at least three processes"
