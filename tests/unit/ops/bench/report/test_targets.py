"""Targets are looked up where they are and held against the right side of their bounds."""

import pytest

from ops.bench.core import Sizes, measure
from ops.bench.record import read_all
from ops.bench.report.__main__ import FOLDER, RESULTS
from ops.bench.report.figures import at
from ops.bench.report.targets import TARGETS, Bound, Target, judged

SPEED = Target("speed", Bound("at least", 4.5, "times"), "race", at("speed", "p50"))
ENGINES = [target for target in TARGETS if target.benchmark == "compare"]


@pytest.mark.parametrize(
    ("comparison", "kept"),
    [("at most", [True, True, False]), ("at least", [False, True, True]), ("below", [True, False, False])],
)
def test_bounds(comparison: str, kept: list[bool]) -> None:
    bound = Bound(comparison, 2, "ms")
    assert [bound.kept_by(value) for value in (1.999, 2.0, 2.001)] == kept
    assert str(bound) == f"{comparison} 2 ms"


def test_every_file_that_has_the_figure_is_judged(made_up) -> None:
    records = [
        made_up("race", {"speed": {"p50": 4.5}}, "good"),
        made_up("race", {"speed": {"p50": 4.4999}}, "bad"),
        made_up("race", {"speed": {"p99": 9}}, "silent"),
        made_up("walk", {"speed": {"p50": 9}}, "other"),
    ]
    assert [(one.record.name, one.value, one.met) for one in judged(records, [SPEED]) if one.record] == [
        ("good", 4.5, True),
        ("bad", 4.4999, False),
    ]


def test_what_no_file_has_is_not_measured(made_up) -> None:
    for records in ([], [made_up("race", {})]):
        (verdict,) = judged(records, [SPEED])
        assert (verdict.record, verdict.value, verdict.met) == (None, None, None)


def test_ratios_over_static_batching(made_up, contest) -> None:
    many = made_up("compare", contest(users=32, rate=45, milliseconds=51), "many")
    one = made_up("compare", contest(users=1, rate=11, milliseconds=1), "one")
    other = made_up("compare", contest(model="1.1b"), "other")
    found = [(each.value, each.met) for each in judged([many, one, other], ENGINES) if each.record]
    assert found == [(4.5, True), (1.1, False), (0.51, False)]


def test_the_shipped_model_in_float32_over_generate(made_up, contest) -> None:
    targets = [target for target in TARGETS if "generate" in target.name]
    assert [str(target.asked) for target in targets] == ["at least 2 times"] * 2 + ["at least 3 times"] * 2
    results = contest(model="model", users=8, rate=29)
    rounded = made_up("compare", {**results, "terms": {**results["terms"], "dtype": "bfloat16"}}, "rounded")
    exact = made_up("compare", {**results, "terms": {**results["terms"], "dtype": "float32"}}, "exact")
    rates = {"1": {"quire": 20.0, "transformers static": 10.0}, "8": {"quire": 31, "transformers static": 10}}
    slower = {"1": {"quire": 19.0, "transformers static": 10.0}}
    shipped, other = ({"dtype": "float32", "output tokens a second": each} for each in (rates, slower))
    answers = {"avx512": {"shipped": shipped, "135m": other}, "avx2": {"shipped": other}, "none": {}}
    checked = made_up("cpu-check", {"answers": answers}, "checked")
    found = [
        (each.record.name, each.value, each.met)
        for each in judged([rounded, exact, checked], targets)
        if each.record
    ]
    assert found == [("checked", 1.9, False), ("exact", 2.9, False), ("checked", 3.1, True)]


def test_the_best_other_engine_is_the_one_that_comes_closest(made_up, contest) -> None:
    results = contest(model="1.1b", users=8, rate=45)
    alone = made_up("compare", contest(model="1.1b", users=8))
    ratios = results["loads"][0]["ratios"]
    for name, ratio in (("fast", 0.99), ("slow", 3.0)):
        ratios[name] = {"output_rate": {"median": ratio}}
    (target,) = (each for each in ENGINES if "best other engine, 1.1b, 8 at once" in each.name)
    assert [(each.value, each.met) for each in judged([alone, made_up("compare", results)], [target])] == [
        (0.99, False)
    ]
    results["terms"]["quantization"] = "int4"  # others' weights are then not those of the checkpoint either
    (verdict,) = judged([made_up("compare", results)], [target])
    assert verdict.record is None


def test_steps_are_judged_by_their_floors(made_up) -> None:
    steps = {"8": {"times the floor": 1.3}, "64": {"times the floor": 9.0}}
    results = {"model": "1.1b", "decode_by_batch": steps, "prefill": {"512": {"times the floor": 1.25}}}
    asked = [target for target in TARGETS if target.benchmark == "step"]
    found = [each for each in judged([made_up("step", results)], asked) if each.record]
    assert [(each.value, each.met) for each in found] == [(1.3, False), (0.8, True)]
    smaller = made_up("step", results | {"model": "135m"})
    assert [(each.value, each.met) for each in judged([smaller], asked) if each.record] == [(1.3, True)]


def test_mechanisms_are_judged_by_their_ratios(made_up) -> None:
    figures = {"output tokens/s, 8 at once": {"ratio": [1.5, 1.7, 1.8]}}
    results = {"weights of int8": {"model": "1.1b", "figures": figures}}
    (target,) = (each for each in TARGETS if each.benchmark == "mechanisms" and "8 at once" in each.name)
    other = made_up("mechanisms", {"fair shares": {"model": "1.1b", "figures": {}}})
    (verdict,) = judged([made_up("mechanisms", results), other], [target])
    assert (verdict.value, verdict.met) == (1.7, True)


def test_grammars_are_judged_by_the_share_that_they_take(made_up) -> None:
    figures = {"share of grammars in steps": {"with": 0.031}, "rate over free text": {"with": 1.5}}
    few, many = (f"drafts of what {what}" for what in ("a grammar forces", "32 grammars force"))
    results = {few: {"model": "135m", "figures": figures}, many: {"model": "1.1b", "figures": figures}}
    targets = [each for each in TARGETS if "grammars in a step" in each.name or "free text" in each.name]
    verdicts = judged([made_up("mechanisms", results)], targets)
    assert [(each.value, each.met) for each in verdicts] == [(1.5, True), (0.031, False), (None, None)]


def test_simulations_are_judged_by_the_load_that_is_asked_for(made_up) -> None:
    targets = [target for target in TARGETS if target.benchmark.startswith("simulate")]
    indices = {"fcfs": 0.97, "priority": 0.96}
    runs = [{"setting": {"policy": policy}, "fairness": index} for policy, index in indices.items()]
    scale = [{"requests": 50_000, "seconds": 5000.0}, {"requests": 10**6, "seconds": 600.0}]
    records = [
        made_up("simulate", {"load": {"kind": "flood"}, "runs": runs}, "flood"),
        made_up("simulate", {"load": {"kind": "shared"}, "runs": runs}, "shared"),
        made_up("simulate", {"trace": "some.csv", "runs": runs}, "trace"),
        made_up("simulate-scale", {"runs": scale[:1]}, "little"),
        made_up("simulate-scale", {"runs": scale}, "much"),
    ]
    found = [(one.record.name, one.value, one.met) for one in judged(records, targets) if one.record]
    assert found == [("flood", 0.96, True), ("much", 10.0, True)]


def test_the_chain_is_judged_where_it_does_worst(made_up) -> None:
    (target,) = (each for each in TARGETS if each.benchmark == "in-process")
    rates = {"1": {"ratio": [0.9, 0.94, 1.2]}, "32": {"ratio": [0.8, 0.99, 1.0]}}
    (verdict,) = judged([made_up("in-process", {"output_tokens_per_second": rates})], [target])
    assert (verdict.value, verdict.met) == (0.94, False)


def test_the_core_has_every_figure_that_is_asked_of_it(made_up) -> None:
    sizes = Sizes((256, 1024), prefix_tokens=640, pools=(1_000, 2_000), users=3, requests=6, repeats=2)
    results = measure(sizes, seed=1)
    asked = [target for target in TARGETS if target.benchmark == "core"]
    found = {one.target.name: one.value for one in judged([made_up("core", results)], asked)}
    assert len(found) == len(asked)
    assert None not in found.values()
    rates = results["blocks_per_second"]
    slow = min(rates["1000"]["empty"]["p50"], rates["2000"]["empty"]["p50"])
    assert found["blocks taken and given back, slowest pool"] == slow
    ratio = rates["2000"]["empty"]["p50"] / rates["1000"]["empty"]["p50"]
    assert found["blocks taken and given back, largest pool over smallest"] == ratio


def test_committed_results_have_their_figures() -> None:
    records = read_all(FOLDER / RESULTS)
    kinds = {record.benchmark for record in records} - {"compare"}  # of which there may be other shapes
    verdicts = [one for one in judged(records) if one.target.benchmark in kinds]
    assert verdicts
    assert [one.target.name for one in verdicts if one.met is None] == []
