"""/metrics: what Prometheus reads of all processes."""

import asyncio
import json
import threading

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as families

from ops.runtime.exposition import Exposition
from ops.runtime.metric_names import BY_NAME, FIRST_TOKEN, KV_USAGE, PROMPT_TOKENS
from ops.runtime.metrics import Metrics, parse
from ops.runtime.metrics_page import Read
from tests.unit.gateway.conftest import app_of, stores_of


def store(snapshots: dict[str, bytes]) -> Read:
    """What reads these snapshots."""

    async def read() -> dict[str, bytes]:
        return snapshots

    return read


def snapshot() -> bytes:
    metrics = Metrics()
    metrics.counter(PROMPT_TOKENS, 'a "model"\n').add(12)
    metrics.gauge(KV_USAGE, "m").set(0.25)
    for seconds in (0.0005, 0.03, 0.03, 1e6):
        metrics.histogram(FIRST_TOKEN, "m").observe(seconds)
    return metrics.snapshot()


async def ask(backend, read, keys=None, **headers: str) -> httpx.Response:
    transport = httpx.ASGITransport(app_of(backend, keys, stores=stores_of(metrics=read)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.get("/metrics", headers=headers)


async def test_each_process_has_its_own_values(backend):
    answer = await ask(backend, store({"scheduler-1": snapshot(), "tokenizer-1": b"nonsense"}))
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, sample.labels.get("le")): (sample.labels, sample.value)
        for family in families(answer.text)
        for sample in family.samples
    }
    assert samples["vllm:prompt_tokens_total", None] == (
        {"model_name": 'a "model"\n', "engine": "scheduler-1"},
        12,
    )
    for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
        assert samples[name, None] == ({"model_name": "m", "engine": "scheduler-1"}, 0.25)
    buckets = [value for (name, _), (_, value) in samples.items() if name == f"{FIRST_TOKEN.name}_bucket"]
    assert buckets == sorted(buckets), "buckets are cumulative"
    assert samples[f"{FIRST_TOKEN.name}_bucket", "0.02"][1] == 1
    assert samples[f"{FIRST_TOKEN.name}_bucket", "0.04"][1] == 3
    assert (
        samples[f"{FIRST_TOKEN.name}_bucket", "+Inf"][1] == samples[f"{FIRST_TOKEN.name}_count", None][1] == 4
    )


async def test_openmetrics_for_those_who_ask_for_it(backend):
    answer = await ask(
        backend, store({"scheduler-1": snapshot()}), accept="application/openmetrics-text; version=1.0.0"
    )
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert "vllm:prompt_tokens" in {family.name for family in open_families(answer.text)}
    assert 'vllm:prompt_tokens_total{engine="scheduler-1"' in answer.text, "a sample has its name, too"


async def test_exemplars_are_in_the_newer_format_alone(backend):
    metrics = Metrics()
    metrics.histogram(FIRST_TOKEN, "m").observe(0.03, 0xABC)
    odd = [*json.loads(metrics.snapshot())[:1], [f"{FIRST_TOKEN.name}#exemplars", ["m"], [[1]]]]
    read = store({"scheduler-1": metrics.snapshot(), "tokenizer-1": json.dumps(odd).encode()})
    newer = await ask(backend, read, accept="application/openmetrics-text")
    found = [
        (sample.labels["le"], sample.exemplar.labels, sample.exemplar.value)
        for family in open_families(newer.text)
        for sample in family.samples
        if sample.exemplar and family.name == FIRST_TOKEN.name
    ]
    assert found == [("0.04", {"trace_id": f"{0xABC:032x}"}, 0.03)]
    assert "trace_id" not in (await ask(backend, read)).text


async def test_the_page_is_made_once_for_readers_at_one_time(backend, monkeypatch):
    """And beside the event loop: with many processes it takes a good part of a second."""
    made, collect = [], Exposition.collect

    def collected(exposition):
        made.append(threading.current_thread())
        return collect(exposition)

    monkeypatch.setattr(Exposition, "collect", collected)
    stores = stores_of(metrics=store({"scheduler-1": snapshot()}))
    transport = httpx.ASGITransport(app_of(backend, stores=stores))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        answers = await asyncio.gather(*(http.get("/metrics", headers={"accept": str(n)}) for n in range(9)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.text for answer in answers}) == 1
    assert len(made) == 1
    assert made[0] is not threading.main_thread()


async def test_where_there_are_keys_it_takes_one(backend, keys_of):
    keys = keys_of({"secret": "north"})
    assert (await ask(backend, store({}), keys)).status_code == 401
    assert (await ask(backend, store({}), keys, authorization="Bearer secret")).status_code == 200


@pytest.mark.parametrize("name", BY_NAME)
def test_every_metric_is_shown(name: str) -> None:
    metrics, metric = Metrics(), BY_NAME[name]
    getattr(metrics, metric.kind)(metric, *("x" for _ in metric.labels))
    shown = [
        family for family in Exposition({"p": parse(metrics.snapshot(), BY_NAME)}).collect() if family.samples
    ]
    assert {family.name for family in shown} == {name, metric.other_name or name}
