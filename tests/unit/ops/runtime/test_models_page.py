"""What a router sees that takes the first series of each metric."""

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from ops.runtime import metric_names as names
from ops.runtime.metrics import Metrics
from ops.runtime.models_page import expose_models


def scheduler(model: str, running: int, waiting: int, held: int, idle: int, empty: int) -> Metrics:
    metrics = Metrics()
    metrics.gauge(names.RUNNING, model).set(running)
    metrics.gauge(names.WAITING, model).set(waiting)
    metrics.gauge(names.WAITING_BY_REASON, model, "capacity").set(waiting)
    for state, count in {"held": held, "idle": idle, "empty": empty, "shared": held}.items():
        metrics.gauge(names.BLOCKS, model, state).set(count)
    if total := held + idle + empty:
        metrics.gauge(names.KV_USAGE, model).set(held / total)
        metrics.gauge(names.CACHE_CONFIG, model, "16", str(total)).set(1)
    return metrics


def found(*schedulers: Metrics) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The series by the name of their metric."""
    snapshots = {f"scheduler-{number}": each.snapshot() for number, each in enumerate(schedulers)}
    body, kind = expose_models(snapshots | {"scheduler-x": b"nonsense"}, "text/plain")
    assert kind.startswith("text/plain")
    return {
        family.name: [({**sample.labels}, sample.value) for sample in family.samples]
        for family in families(body.decode())
        if family.samples
    }


def test_a_model_has_one_series_of_each_metric() -> None:
    of_m = {"model_name": "m", "engine": "all"}
    series = found(
        scheduler("m", 1, 5, held=90, idle=10, empty=0),
        scheduler("m", 2, 0, held=0, idle=100, empty=200),
        scheduler("m", 0, 2, held=0, idle=0, empty=0),
    )
    assert series == {
        "vllm:num_requests_running": [(of_m, 3)],
        "vllm:num_requests_waiting": [(of_m, 7)],
        "vllm:num_requests_waiting_by_reason": [(of_m | {"reason": "capacity"}, 7)],
        "vllm:kv_cache_usage_perc": [(of_m, pytest.approx(90 / 400))],
        "vllm:gpu_cache_usage_perc": [(of_m, pytest.approx(90 / 400))],
        "vllm:cache_config_info": [(of_m | {"block_size": "16", "num_gpu_blocks": "400"}, 1)],
    }


def test_models_are_kept_apart() -> None:
    series = found(scheduler("m", 1, 0, 1, 0, 0), scheduler("n", 2, 0, 0, 0, 1), Metrics())
    for name, values in {"num_requests_running": (1, 2), "kv_cache_usage_perc": (1, 0)}.items():
        assert {labels["model_name"]: value for labels, value in series[f"vllm:{name}"]} == dict(
            zip("mn", values, strict=True)
        )


def test_without_workers_nothing_is_full() -> None:
    series = found(scheduler("m", 0, 1, 0, 0, 0))
    assert series["vllm:kv_cache_usage_perc"] == [({"model_name": "m", "engine": "all"}, 0)]
    assert "vllm:cache_config_info" not in series


def test_adapters_of_all_schedulers_are_named_once() -> None:
    one, two, other = Metrics(), Metrics(), Metrics()
    one.gauge(names.LORA, "m", "9", "sql", "go,owl").set(7)
    two.gauge(names.LORA, "m", "10", "", "fox,go").set(8)
    other.gauge(names.LORA, "n", "1", "", "").set(9)
    labels = ("model_name", "max_lora", "waiting_lora_adapters", "running_lora_adapters")
    series = [
        (tuple(own[label] for label in labels), value)
        for own, value in found(one, two, other)[names.LORA.name]
    ]
    assert series == [(("m", "10", "sql", "fox,go,owl"), 8), (("n", "1", "", ""), 9)]
