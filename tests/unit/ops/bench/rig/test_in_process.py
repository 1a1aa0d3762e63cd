"""The engine in one process gives the answers of any other, and counts what it did for them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu_worker.memory.host import HostOffer, HostPages
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.runner import Runner
from ops.bench import step
from ops.bench.load.workload import Workload
from ops.bench.mechanisms import drafts as drafting
from ops.bench.mechanisms import mechanisms
from ops.bench.mechanisms.drafts import drafts
from ops.bench.rig.accounting import needed
from ops.bench.rig.in_process import InProcess
from ops.bench.rig.timed import PARTS
from scheduler_svc.core.draft_cost import DraftCost

SETTINGS = WorkerSettings(dtype="float32", kv_memory=64 << 20, threads=1, max_slots=16, step_tokens=96)
QUESTIONS = Workload(prompt_lengths=(40, 9, 21), output_lengths=(20, 40)).conversations(7, 3)


@pytest.fixture(scope="module")
def runner() -> Runner:
    return load(SETTINGS)


def answered(engine: InProcess) -> list[list[int]]:
    asked = [engine.ask(questions[0]) for questions in QUESTIONS]
    engine.run()
    return [each.tokens[0] for each in asked]


@pytest.fixture(scope="module")
def expected(runner) -> list[list[int]]:
    """One request after the other."""
    found = []
    for questions in QUESTIONS:
        engine = InProcess(runner, depth=1)
        asked = engine.ask(questions[0])
        engine.run()
        found.append(asked.tokens[0])
    return found


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_answers_do_not_depend_on_the_depth(runner, expected, depth) -> None:
    engine = InProcess(runner, depth=depth, step_tokens=33)
    assert answered(engine) == expected
    questions = [each for conversation in QUESTIONS for each in conversation]
    assert [len(tokens) for tokens in expected] == [each.max_tokens for each in questions]
    assert engine.tally.computed == needed(questions)
    assert engine.admissions == len(QUESTIONS)


def test_with_fewer_bits_an_answer_does_not_depend_on_the_batch() -> None:
    """Nor on chunks, nor on being computed again: a row is quantized by itself."""
    fewer = {"quantization": "int8", "kv_dtype": "int8"}
    runner = load(WorkerSettings(**(SETTINGS.model_dump() | fewer)))
    alone = []
    for questions in QUESTIONS:
        engine = InProcess(runner, depth=1)
        asked = engine.ask(questions[0])
        engine.run()
        alone.append(asked.tokens[0])
    assert answered(InProcess(runner, depth=2, step_tokens=33)) == alone
    crowded = InProcess(runner, num_blocks=5, shares=False)
    assert answered(crowded) == alone
    assert crowded.admissions > len(QUESTIONS)


def test_a_pool_too_small_computes_again_and_answers_the_same(runner, expected) -> None:
    engine = InProcess(runner, num_blocks=5, shares=False)
    assert answered(engine) == expected
    assert engine.admissions > len(QUESTIONS)
    assert engine.tally.computed > needed(each for conversation in QUESTIONS for each in conversation)
    assert max(engine.tally.held) <= 5 * 16


def test_with_host_memory_less_is_computed_again_and_answers_are_the_same(runner, expected) -> None:
    runner.host = HostPages(runner.caches, 40)
    without = InProcess(runner, num_blocks=6, shares=False)
    assert answered(without) == expected
    swapping = InProcess(runner, num_blocks=6, shares=False, host=HostOffer(40, 1.0, 1.0))
    assert answered(swapping) == expected
    assert swapping.tally.computed < without.tally.computed
    assert swapping.swaps > without.swaps == 0


def test_a_closed_loop_keeps_so_many_at_once(runner) -> None:
    conversations = Workload(prompt_lengths=(8,), output_lengths=(4, 4), turns=2).conversations(5, 1)
    engine = InProcess(runner)
    answers, seconds = engine.closed_loop(conversations, 2)
    assert len(answers) == 10
    assert all(answer.output_tokens == 4 and answer.ended > answer.sent for answer in answers)
    assert max(answer.ended for answer in answers) - min(answer.sent for answer in answers) <= seconds
    begun = sorted([(answer.sent, 1) for answer in answers] + [(answer.ended, -1) for answer in answers])
    going = 0
    for _, change in begun:
        going += change
        assert going <= 2


def test_only_what_is_shared_is_saved(runner) -> None:
    workload = Workload(prompt_lengths=(8,), output_lengths=(4, 4), shared_prefix=64)
    computed = {}
    for shares in (True, False):
        engine = InProcess(runner, shares=shares)
        engine.closed_loop(workload.conversations(4, 1), 1)
        computed[shares] = engine.tally.computed
    assert computed[False] - computed[True] == 3 * 64


def test_a_mechanism_is_measured_with_and_without(runner) -> None:
    found = mechanisms.measure(runner, SETTINGS, 1, 5, frozenset({"parallel samples"}))
    (one,) = found.values()
    tokens = one["figures"]["tokens computed"]
    # Together the prompt is computed once but for what follows its last full block.
    assert tokens["without"] == 4 * (505 + 31)
    assert tokens["with"] < 505 + 4 * (31 + 16)
    assert tokens["ratio"][1] == pytest.approx(tokens["with"] / tokens["without"], abs=1e-3)
    assert "parallel samples" in mechanisms.table(found)


@pytest.mark.parametrize("fewer", [{}, {"quantization": "int8", "kv_dtype": "int8"}])
def test_the_parts_of_a_step_make_the_whole(monkeypatch, fewer) -> None:
    monkeypatch.setattr(step, "measured", lambda dtype, threads: step.Rates(1e10, 1e11))

    def measure():
        model = step.Model.load(WorkerSettings(**(SETTINGS.model_dump() | fewer)))
        shapes = step.decode_step(model, 4, 100, 1), step.prefill_step(model, 64, 1)
        return [shape.table() for shape in shapes]

    with ThreadPoolExecutor(1) as thread:
        for parts in thread.submit(measure).result():
            assert sum(parts[part] for part in (*PARTS, "host code")) == pytest.approx(
                parts["kernel by kernel"], abs=0.02
            )
            assert all(parts[part] > 0 for part in PARTS)
            assert parts["times the floor"] == pytest.approx(parts["step"] / parts["floor"], rel=0.02)


def test_waiting_requests_do_not_slow_a_plan(runner) -> None:
    few, many = (step.scheduler_step(runner.limits, 8, waiting) for waiting in (0, 2000))
    assert 0 < many < 10 * few + 1


def test_rates_are_those_of_all_threads() -> None:
    def threads() -> tuple[int, int]:
        settings = WorkerSettings(kv_memory=64 << 20)
        return settings.thread_count, step.Model.load(settings).threads

    with ThreadPoolExecutor(1) as thread:
        before, used = thread.submit(threads).result()
    assert before == used


@pytest.fixture
def _free_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts seem to cost no time: what steps take here says nothing while other tests compute."""
    monkeypatch.setattr(DraftCost, "learn", lambda *_: None)


@pytest.mark.usefixtures("_free_drafts")
def test_drafts_are_measured(runner) -> None:
    with_drafts, without = (drafts(kind, 1, repeating=True)(runner, 0) for kind in ("ngram", "off"))
    assert with_drafts["tokens of a sequence a step"] > 1.1 > 1 > without["tokens of a sequence a step"]
    assert without["tokens computed"] == len(drafting._tokens(drafting.REPEATING)) + drafting.TOKENS - 1
    # A draft that does not hold was computed for nothing.
    assert with_drafts["tokens computed"] >= without["tokens computed"]


@pytest.mark.usefixtures("_free_drafts")
def test_a_prediction_is_measured(runner) -> None:
    """Of 128 tokens six were predicted wrongly."""
    tried, plain = (drafting.predicted(each)(runner, 0) for each in (True, False))
    assert tried["tokens of a sequence a step"] > 2
    assert plain["tokens of a sequence a step"] <= 1
