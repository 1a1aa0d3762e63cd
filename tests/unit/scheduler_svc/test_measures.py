"""What a scheduler measures of requests that a worker computes, on a clock that stands still."""

from types import SimpleNamespace

import pytest

from ops.runtime.metric_names import BY_NAME
from ops.runtime.metrics import Metrics, Snapshot, exemplars_in, parse
from proto.worker_pb2 import StepResult
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.sequence import State
from scheduler_svc.measures import Measures, RequestTimes


class Rig:
    def __init__(self, fake: SimpleNamespace, **limits: int) -> None:
        self.now = 10.0
        self.metrics = Metrics()
        self.measures = Measures("m", self.metrics, lambda: self.now)
        self.fleet = Fleet(token_budget=64)
        self.scheduler, _ = self.fleet.add_worker(fake.limits(**limits))
        self.worker = fake.StrictWorker(self.scheduler.limits)

    def step(self) -> None:
        plan = self.scheduler.plan()
        assert plan is not None
        self.measures.planned(plan)
        self.measures.computed(StepResult(duration_us=1500))
        self.fleet.settle(self.scheduler, self.scheduler.complete(self.worker.execute(plan)))

    def values(self) -> Snapshot:
        self.measures.read(self.fleet)
        return parse(self.metrics.snapshot(), BY_NAME)

    def value(self, name: str, *labels: str) -> float:
        return self.values()[name]["m", *labels][0]

    def histogram(self, name: str) -> tuple[float, float]:
        """How many values, and their sum."""
        *counts, total = self.values()[name]["m",]
        return sum(counts), total


def test_times_of_a_request(fake: SimpleNamespace) -> None:
    rig, seen = Rig(fake), []
    times = RequestTimes(rig.measures, seen.append)
    group, _ = rig.fleet.accept(fake.request([1, 2, 3], max_tokens=3), times)
    rig.now += 4
    rig.step()
    rig.now += 2
    times.first_token()
    times.first_token()
    rig.step()
    rig.now += 1
    while group.unfinished:
        rig.step()
    rig.measures.ended(group, times)
    assert seen, "the other watch sees the states as well"
    assert rig.histogram("vllm:request_queue_time_seconds") == (1, 4)
    assert rig.histogram("vllm:request_prefill_time_seconds") == (1, 2)
    assert rig.histogram("vllm:request_decode_time_seconds") == (1, 1)
    assert rig.histogram("vllm:request_inference_time_seconds") == (1, 3)
    assert rig.value("quire:steps") == 3
    assert rig.histogram("vllm:iteration_tokens_total") == (3, 5)
    assert rig.histogram("quire:step_seconds") == (3, pytest.approx(0.0045))


def test_what_grammars_forced_is_counted_with_the_request(fake: SimpleNamespace) -> None:
    rig = Rig(fake)
    times = RequestTimes(rig.measures, None)
    group, _ = rig.fleet.accept(fake.request([1, 2, 3]), times)
    group.drafted_rows, group.drafts, group.drafts_held, group.forced_tokens = 3, 9, 7, 5
    rig.measures.ended(group, times)
    assert rig.value("vllm:spec_decode_num_drafts") == 3
    assert rig.value("vllm:spec_decode_num_accepted_tokens") == 7
    assert rig.value("quire:forced_tokens") == 5


def test_a_request_that_was_left_has_no_end(fake: SimpleNamespace) -> None:
    rig = Rig(fake)
    times = RequestTimes(rig.measures, None)
    group, _ = rig.fleet.accept(fake.request([1, 2, 3]), times)
    rig.step()
    times.first_token()
    rig.measures.ended(group, times)
    assert rig.histogram("vllm:request_decode_time_seconds") == (0, 0)


def test_blocks_forks_and_hits(fake: SimpleNamespace) -> None:
    rig = Rig(fake, num_blocks=16)
    size = rig.scheduler.limits.block_size
    prompt = list(range(2 * size + 1))
    first, _ = rig.fleet.accept(fake.request(prompt, n=3, max_tokens=4))
    rig.step()
    rig.step()
    assert rig.value("vllm:num_requests_running") == 3
    assert rig.value("quire:forks") == 2
    assert rig.value("quire:kv_blocks", "shared") == 2
    assert rig.value("quire:kv_blocks", "held") == 5
    assert rig.value("vllm:kv_cache_usage_perc") == 5 / 16
    assert 0 < rig.value("quire:kv_waste_ratio") < 1
    assert rig.value("vllm:cache_config_info", str(size), "16") == 1
    while first.unfinished:
        rig.step()
    rig.measures.ended(first, RequestTimes(rig.measures, None))
    second, _ = rig.fleet.accept(fake.request(prompt, max_tokens=1))
    while second.unfinished:
        rig.step()
    rig.measures.ended(second, RequestTimes(rig.measures, None))
    assert rig.value("vllm:prefix_cache_queries") == 2 * len(prompt)
    assert rig.value("vllm:prefix_cache_hits") == 2 * size
    assert rig.value("vllm:num_requests_running") == 0
    assert rig.value("quire:kv_blocks", "shared") == 0
    held, idle, empty = (rig.value("quire:kv_blocks", state) for state in ("held", "idle", "empty"))
    assert held == 0
    assert idle + empty == 16


def test_without_a_worker_everything_waits(fake: SimpleNamespace) -> None:
    metrics = Metrics()
    measures, fleet = Measures("m", metrics), Fleet(64)
    fleet.accept(fake.request([1]))
    measures.read(fleet)
    found = parse(metrics.snapshot(), BY_NAME)
    assert found["vllm:num_requests_waiting"]["m",] == [1]
    assert found["vllm:num_requests_waiting_by_reason"] == {("m", "capacity"): [1]}
    assert found["quire:workers"]["m",] == [0]
    assert found["vllm:kv_cache_usage_perc"]["m",] == [0]


def test_what_the_memory_consists_of_is_forgotten_with_its_worker(fake: SimpleNamespace) -> None:
    """A worker sizes its memory anew each time that it starts."""
    rig = Rig(fake, num_blocks=16)
    rig.values()
    rig.fleet.remove_worker(rig.scheduler)
    rig.fleet.add_worker(fake.limits(num_blocks=20))
    found = rig.values()["vllm:cache_config_info"]
    assert [blocks for _, _, blocks in found] == ["20"]


def test_adapters_with_requests_are_named(fake: SimpleNamespace) -> None:
    rig = Rig(fake, max_slots=2, adapters={"go": "1", "owl": "2", "sql": "3"})
    for adapter in ("go", "", "sql"):
        rig.fleet.accept(fake.request([1, 2], max_tokens=3, adapter=adapter))
    rig.step()
    assert list(rig.values()["vllm:lora_requests_info"]) == [("m", "3", "sql", "go")]
    for _ in range(3):
        rig.step()
    assert list(rig.values()["vllm:lora_requests_info"]) == [("m", "3", "", "sql")]


def test_without_adapters_there_is_no_word_of_them(fake: SimpleNamespace) -> None:
    assert "vllm:lora_requests_info" not in Rig(fake).values()


@pytest.mark.parametrize(("flags", "traced"), [("01", True), ("03", True), ("00", False)])
def test_a_traced_request_is_the_exemplar_of_its_buckets(flags: str, traced: bool) -> None:
    metrics = Metrics()
    times = RequestTimes(Measures("m", metrics), None, f"00-{'0' * 30}2a-{'1' * 16}-{flags}")
    times(SimpleNamespace(state=State.PREFILL))  # type: ignore[arg-type]
    times.first_token()
    times.complete()
    found = exemplars_in(metrics.snapshot(), BY_NAME)
    ids = {each.trace_id for named in found.values() for some in named.values() for each in some.values()}
    assert (len(found), ids) == ((4, {0x2A}) if traced else (0, set()))
