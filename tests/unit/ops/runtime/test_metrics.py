"""Values of metrics, their snapshots, and snapshots that nobody can read."""

import json
import re
import time

import pytest

from ops.runtime.metric_names import BY_NAME
from ops.runtime.metrics import Metric, Metrics, cpu_seconds, exemplars_in, parse, resident_bytes

HITS = Metric("quire:hits", "Hits.", "counter", ("model_name",))
SIZE = Metric("quire:size", "Size.", "gauge")
SECONDS = Metric("quire:seconds", "Seconds.", "histogram", ("model_name",), (0.1, 1.0))
KNOWN = {metric.name: metric for metric in (HITS, SIZE, SECONDS)}


def test_a_snapshot_has_what_was_measured() -> None:
    metrics = Metrics()
    metrics.counter(HITS, "m").add()
    metrics.counter(HITS, "m").add(2)
    metrics.counter(HITS, "other").add(5)
    seconds = metrics.histogram(SECONDS, "m")
    for value in (0.05, 0.1, 0.5, 7.0, 8.0):
        seconds.observe(value)
    metrics.read_by(lambda: metrics.gauge(SIZE).set(4))
    found = parse(metrics.snapshot(), KNOWN)
    assert found["quire:hits"] == {("m",): [3], ("other",): [5]}
    assert found["quire:size"] == {(): [4]}
    (*counts, total) = found["quire:seconds"]["m",]
    assert counts == [2, 1, 2], "a value that equals a bound is below it"
    assert total == pytest.approx(15.65)


def test_a_metric_has_one_kind_and_all_of_its_labels() -> None:
    metrics = Metrics()
    with pytest.raises(AssertionError, match="quire:hits"):
        metrics.gauge(HITS, "m")
    with pytest.raises(AssertionError, match="quire:hits"):
        metrics.counter(HITS)


def test_what_another_version_measures_is_left_out() -> None:
    told = [
        ("quire:unknown", [], 1),
        ("quire:hits", ["m", "more"], 1),
        ("quire:hits", ["m"], [1, 2]),
        ("quire:seconds", ["m"], [1, 2, 3, 4, 5, 6]),
        ("quire:size", [], float("inf")),
        ("quire:size", [], 3),
    ]
    assert parse(json.dumps(told).encode(), KNOWN) == {"quire:size": {(): [3]}}


@pytest.mark.parametrize(
    "snapshot",
    [b"", b"\xff", b"7", b'{"a": 1}', b"[[1]]", b'[["quire:hits", 1, 1]]', b'[["a",[],"x"]]', b"[" * 10**5],
)
def test_nonsense_is_one_error(snapshot: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse(snapshot, KNOWN)


def test_names_are_names_of_prometheus() -> None:
    assert len(BY_NAME) > 30
    names = [*BY_NAME, *filter(None, (metric.other_name for metric in BY_NAME.values()))]
    assert len(set(names)) == len(names)
    for metric in BY_NAME.values():
        assert re.fullmatch(r"(vllm|quire):[a-z0-9_]+", metric.name)
        assert metric.help.endswith(".")
        assert "engine" not in metric.labels
        assert not (metric.kind == "counter" and metric.name.endswith("_total"))


def test_a_process_knows_what_it_takes() -> None:
    assert cpu_seconds() > 0
    assert resident_bytes() > 2**20 or resident_bytes() == 0


def test_the_newest_traced_value_of_each_bucket_is_its_exemplar() -> None:
    metrics = Metrics()
    seconds = metrics.histogram(SECONDS, "m")
    trace = 0x4BF92F3577B34DA6A3CE929D0E0E4736  # more than a float holds
    for value, trace_id in ((0.05, 7), (0.06, trace), (0.07, 0), (9.0, 5), (0.5, 0)):
        seconds.observe(value, trace_id)
    snapshot = metrics.snapshot()
    assert parse(snapshot, KNOWN)["quire:seconds"]["m",][:3] == [3, 1, 1]
    found = exemplars_in(snapshot, KNOWN)["quire:seconds"]["m",]
    assert {bucket: each[:2] for bucket, each in found.items()} == {0: (trace, 0.06), 2: (5, 9.0)}
    assert all(abs(each.at - time.time()) < 60 for each in found.values())


def test_without_traces_there_are_no_exemplars() -> None:
    metrics = Metrics()
    metrics.histogram(SECONDS, "m").observe(0.5)
    assert b"exemplars" not in metrics.snapshot()
    assert exemplars_in(metrics.snapshot(), KNOWN) == {}


def test_exemplars_that_cannot_be_are_left_out() -> None:
    told = [
        ["quire:seconds#exemplars", ["m"], [9, 1, 1, 1, 0, 0, 1, 1, 0, 2**128, 1, 1, 1, 3, 0.5, 7]],
        ["quire:seconds#exemplars", [], [0, 1, 1, 1]],
        ["quire:other#exemplars", ["m"], [0, 1, 1, 1]],
    ]
    found = exemplars_in(json.dumps(told).encode(), KNOWN)
    assert found == {"quire:seconds": {("m",): {1: (3, 0.5, 7.0)}}}
