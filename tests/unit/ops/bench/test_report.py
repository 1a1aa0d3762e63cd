"""The report says what the result files say, all of it, and the same each time."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from ops.bench.core import Sizes, measure
from ops.bench.mechanisms.mechanisms import _figures
from ops.bench.one_redis import limit
from ops.bench.record import Record, read, read_all
from ops.bench.report.__main__ import FOLDER, RESULTS, gpu_of, text, write
from ops.bench.report.sections import KINDS
from ops.bench.rig.timed import PARTS
from ops.bench.traces import ALL, COMPARISONS, Turn, part_of
from ops.bench.traces import compared as traces_compared
from ops.simulate import scale
from ops.simulate.arrivals import Load
from ops.simulate.compare import Grid, compare
from ops.simulate.cost import SECOND, Measured, Shape, StepCost
from ops.simulate.measure import fitted

SHAPE = {"step": 10.0, **dict.fromkeys(PARTS, 1.0), "host code": 3.0, "floor": 5.0, "times the floor": 2.0}
STEP = {
    "model": "135m",
    "dtype": "bfloat16",
    "threads": 2,
    "read_gb_s": 30.5,
    "matrix_gflop_s": 400.5,
    "decode_by_batch": {"1": SHAPE, "8": SHAPE},
    "decode_by_context": {"128": SHAPE},
    "prefill": {"512": SHAPE},
    "scheduler_ms_by_batch": {"1": 0.01},
    "scheduler_ms_by_waiting": {"0": 0.02},
    "queue_ms_by_batch": {"1": 0.9},
}
CASE = {"shape": "9 heads", "rows": 8, "tokens": 1, "context": 128}
ATTENTION = {
    "instruction set": "avx512",
    "threads": 2,
    "decodes": [CASE | {"GB/s": 20.0, "GB/s of PyTorch": 4.0}],
    "chunks": [CASE | {"GFLOP/s": 30.0, "GFLOP/s of PyTorch": 4.0}],
}
CARRIED = {
    "concurrency": 8,
    "output_rate": 1500.5,
    "of_the_device": 0.938,
    "between_tokens_ms": {"p50": 5.0, "p90": 5.5, "p99": 7.0},
    "cpu_us_per_token": {"gateway": 50.0, "worker": 140.0},
}
LEVELS = [
    {
        "pairs": pairs,
        "entries_per_second": 10_000.0 * pairs,
        "messages_per_second": 320_000.0 * pairs,
        "megabytes_per_second": 11.75 * pairs,
        "busy": busy,
        "cpu_us_per_entry": 100 * busy / pairs,
        "entries_per_read": 1.5,
    }
    for pairs, busy in ((1, 0.25), (2, 0.4))
]
TRACED = traces_compared([Turn(2000, {ALL: 54_000.0 + turn}) for turn in range(9)])
PART = part_of(TRACED[COMPARISONS[0]], TRACED["untraced"]["cpu_us_per_request"][ALL])
TRACES = {"rate": 0.1, "added part of all CPU": {COMPARISONS[0]: PART}, "computing": TRACED}
ONE_REDIS = {
    "entries_a_step": 4,
    "calls_a_request": 2,
    "by_batch": {"32": {"entry_bytes": 1174, "levels": LEVELS, "limit": limit(LEVELS, 32)}},
    "cpu_us_per_call": 200.0,
    "requests_per_second": 2500.0,
}
TIMES = {"p50": 1.0, "p90": 2.0, "p99": 3.5}
CHAOS = {
    "deployment": {
        "gateway": 1,
        "tokenizer": 2,
        "scheduler": 2,
        "worker": 2,
        "redis": 1,
        "lease_seconds": 3.0,
    },
    "streams": 32,
    "faults": 200,
    "minutes": 9.5,
    "requests": {"accepted": 900, "completed": 900, "identical": 899, "different": 1, "lost": 0},
    "tokens": {"received": 90_000, "lost": 0, "repeated": 2},
    "recovery_s": TIMES,
    "longest_recovery_s": 4.5,
    "by_fault": {"worker: killed": {"times": 7, "p50_s": 0.5, "longest_s": 0.9}},
    "at_the_end": {"pending_calls": 0, "errors_logged": 0},
}
SOAK = {
    "minutes": 60.0,
    "users": 12,
    "requests": {"200": 5000, "left in the middle": 300},
    "memory": {"gateway": {"MiB at the end": 70.0, "MiB an hour": 0.25, "MiB since the warm-up": 0.2}},
    "steepest_mib_an_hour": 0.25,
    "held": {"gateway descriptors": {"before": 20, "after": 21}},
    "left_behind": 0,
    "problems": 0,
}
FRONT = {
    "costs": {
        "cpu_us_per_token": {"both": 74.5},
        "cpu_ms_per_request": {"1 at once": {"both": 4.2}, "64 at once": {"both": 1.6}},
    },
    "idle": {"grown_mb": {"both": 136}},
    "long_prompts": {"extra_ms": 12},
}
HOSTILE_GRAMMARS = {
    "users": 4,
    "rounds": 5,
    "grammars": 58,
    "refused": 30,
    "followed": 28,
    "refusal_s": 0.41,
    "gaps_ms": {"beside the grammars": {"p50": 4.1, "longest": 19.5}, "alone": {"p50": 4.0, "longest": 9.5}},
    "extra_ms": 10.0,
    "until_refused_s": {"grammar: terminals that double": 0.41},
    "until_answered_s": {"schema: a thousand fields": 0.7},
    "problems": [],
}
OVERLOAD = {
    "capacity": 68,
    "prompts": 32,
    "answered_a_second": 20.5,
    "times": 10,
    "loads": {"at capacity": {"answered": 400, "answered, ms": TIMES, "refused": 0, "refused, ms": None}},
    "p99_over_capacity": 1.125,
    "refusal_p99_ms": 12.5,
    "recovery_s": 0.02,
    "grew": {"gateway MiB": (70.0, 70.5)},
}
COST = StepCost.from_milliseconds(
    {"step": 1, "row": 0.1, "prefill": 0.1, "context": 0.001, "pair": 0, "idle": 0}
)
PAIRS = [({"rate": 20.0, "preemptions": 0.0}, {"rate": 10.0, "preemptions": 3.0})] * 2


def save(record: Record, folder: Path) -> None:
    """As a result file."""
    found = asdict(record)
    name = found.pop("name")
    (folder / f"{name}.json").write_text(json.dumps(found))


@pytest.fixture
def folder(tmp_path, made_up, contest) -> Path:
    """Results of several kinds, with one kind that the report does not know."""
    results = tmp_path / RESULTS
    results.mkdir()
    sizes = Sizes((3, 5), prefix_tokens=64, pools=(1_000, 2_000), users=3, requests=6, repeats=2)
    loop = {"requests": 4, "errors": 0, "goodput": 1.0, "output_rate": 77.0} | {
        kind: {"p50": 1.0, "p90": 2.0, "p99": 3.0} for kind in ("first_token", "between_tokens", "end_to_end")
    }
    measured = {"work": "some work", "model": "135m", "dtype": "bfloat16", "figures": _figures(PAIRS)}
    load = Load(requests=20, output_lengths=(2, 5))
    steps = [
        Measured(shape := Shape(rows, 9 * rows, rows % 3), COST.of(shape) / SECOND) for rows in range(1, 30)
    ]
    error = {"output_rate": 0.03, "TTFT p50": -0.125}
    for record in (
        made_up("compare", contest(rate=8), "small"),
        made_up("compare", contest(model="1.1b"), "large"),
        made_up(
            "in-process",
            {"output_tokens_per_second": {"8": {"chain": 9.0, "in_process": 9.5, "ratio": [0.9, 0.95, 1]}}},
        ),
        made_up(
            "serve",
            {
                "model": "m",
                "asked": {"prompt_lengths": [32], "shared_prefix": 9, "turns": 2, "trace": ""},
                "loops": {"8 at once": loop},
            },
        ),
        made_up("step", STEP),
        made_up("step", STEP | {"decode_by_context": {}}, "short"),
        made_up("mechanisms", {"sharing": measured}),
        made_up("footprint", {"model": "m", "dtype": "bfloat16", "peak MiB": 7.5}),
        made_up("schema-suite", {"schemas": 9, "libraries": {"llguidance": {"followed": 7, "refused": 2}}}),
        made_up("formats-memory", {"formats": {"awq": {"shape": "3b", "peak over kept": 1.05}}}),
        made_up(
            "formats-steps", {"model": "m", "formats": {"awq": {"1": {"ms": 2.0, "ratio": [1, 1.1, 1.2]}}}}
        ),
        made_up("attention", ATTENTION),
        made_up("recurrent", {"milliseconds": {"LFM2": {"1 users": {"quire": 1.0, "transformers": 2.0}}}}),
        made_up("gguf", {"file": "m-q4_k_m", "milliseconds": {"1 users": {"quire": 1.0, "llama_cpp": 2.0}}}),
        made_up("predictor", {"milliseconds": {"1 users": {"without the layer": 1.0, "1 drafts": 1.5}}}),
        made_up("images", {"milliseconds of a step": {"1 users": {"text": 1.0, "behind images": 1.5}}}),
        made_up("grammars", {"schemas": 100, "libraries": {"llguidance": {"compiling, P50, ms": 1.5}}}),
        made_up("paced", {"prompt_tokens": 32, "answer_tokens": 256, "by_step_ms": {"5": [CARRIED]}}),
        made_up("front", FRONT),
        made_up(
            "traces", {"rate": 0.1, "added part of all CPU": {COMPARISONS[0]: PART}, "computing": TRACED}
        ),
        made_up("watching", {"rows": 32, "part of a core": {"gateway": 0.002, "metrics": 0.004}}),
        made_up("one-redis", ONE_REDIS),
        made_up("chaos", CHAOS),
        made_up("soak", SOAK),
        made_up("overload", OVERLOAD),
        made_up("hostile-grammars", HOSTILE_GRAMMARS),
        made_up("core", measure(sizes, seed=1)),
        made_up(
            "simulate", compare(Grid(workers=(1, 2)), load.arrivals, 20, COST, print) | {"load": asdict(load)}
        ),
        made_up("simulate-scale", {"runs": scale.measure(2, 20, (9.0,), COST)}),
        made_up("step-cost", fitted(steps) | {"model": "135m", "threads": 2}),
        made_up("simulate-validation", {"model": "135m", "loads": [{"load": asdict(load), "error": error}]}),
        made_up(
            "taste",
            {"sweet": 3.25, "salt": {"fine": {"grains": 12, "kinds": ["a", "b"]}, "coarse": {"grains": 5}}},
        ),
    ):
        save(record, results)
    return tmp_path


def test_the_committed_report_is_what_the_committed_results_give() -> None:
    """`make report` after every change of a result, a target or a section."""
    assert (FOLDER / "report.md").read_text() == text(read_all(FOLDER / RESULTS))


def test_links_of_the_committed_report_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (FOLDER / "report.md").read_text())
    assert "results/wire.json" in links
    assert [link for link in links if not (FOLDER / link).exists()] == []


def test_every_drawing_that_it_shows_is_made(folder) -> None:
    shown = re.findall(r"!\[.*\]\((.+)\)", write(folder).read_text())
    assert sorted(shown) == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.svg"))
    assert {"plots/small/compare_throughput.svg", "plots/step/step.svg", "plots/short/step.svg"} < set(shown)


def test_each_file_has_a_section_with_its_origin(folder) -> None:
    records = read_all(folder / RESULTS)
    report = text(records)
    sections = report.split("\n## ")
    for record in records:
        (section,) = (each for each in sections if f"\n_[{record.name}.json]" in each)
        assert "2026-02-03, commit abc1234, seed 7; Abacus, 2 cores, 1.5 GiB" in section
    assert {record.benchmark for record in records} > KINDS.keys() - {
        "before-after",
        "chain",
        "cpu-check",
        "gpu-check",
        "gpu-start",
        "gpu-tilings",
        "wire",
        "linear",
    }
    assert "1. Linux, Python 3.11.0, torch 2.0" in sections[-1]


def test_where_one_redis_ends_is_told(folder) -> None:
    report = text(read_all(folder / RESULTS))
    assert "| 32, 1174 bytes | 2 | 20,000 | 640,000 | 23.5 | 0.4 | 20 | 1.5 |" in report
    # Of a core 0.4 carry 20,000 entries; four of them are a step.
    assert "| 32 | 50,000 | 58.7 | 12,500 | 400,000 |" in report
    assert "2,500 requests a second" in report


def test_what_streams_cost_is_judged(folder) -> None:
    report = text(read_all(folder / RESULTS))
    assert "a streamed token, 64 at once | at most 120 µs | 74.5 | met | [front.json]" in report
    assert "a request with one token, 1 at once | at most 3 ms | 4.2 | **missed** | [front.json]" in report
    assert "2,000 streams take in gateway and tokenizer | below 300 MB | 136 | met | [front.json]" in report
    assert "100,000 tokens, over that without | at most 20 ms | 12 | met | [front.json]" in report


def test_what_metrics_cost_is_judged(folder) -> None:
    report = text(read_all(folder / RESULTS))
    assert "in steps of 20 ms | below 0.005 of a core | 0.004 | met | [watching.json]" in report


def test_what_breaks_is_told_and_judged(folder) -> None:
    report = text(read_all(folder / RESULTS))
    assert "Of 90,000 tokens 0 were lost and 2 came twice." in report
    assert "| worker: killed | 7 | 0.5 | 0.9 |" in report
    assert "| answers that differ, whatever fails | at most 0 | 1 | **missed** | [chaos.json]" in report
    assert "after a fault | below 5 s | 3.5 | met | [chaos.json]" in report
    assert "| gateway | 70 | 0.25 | 0.2 |" in report
    assert "at ten times the capacity, over that at capacity | at most 1.5 times | 1.125 | met |" in report
    assert "| gateway MiB | 70 | 70.5 |" in report
    assert "30 were refused, after 0.41 s at most; 28 could be followed. 0 got anything else." in report
    assert (
        "hostile grammars, over that without | at most 20 ms | 10 | met | [hostile-grammars.json]" in report
    )
    assert "| schema: a thousand fields | 0.7 |" in report


def test_nothing_is_left_out_of_what_it_does_not_know(folder) -> None:
    (section,) = (
        each for each in text(read_all(folder / RESULTS)).split("\n## ") if each.startswith("Taste")
    )
    for line in (
        "| sweet | 3.25 |",
        "Salt:",
        "|  | grains | kinds |",
        "| fine | 12 | a, b |",
        "| coarse | 5 | - |",
    ):
        assert line in section


def test_a_load_says_what_was_asked(made_up) -> None:
    asked = {"prompt_lengths": [32, 64], "shared_prefix": 0, "turns": 1, "trace": ""}
    for change, said in (
        ({}, "Prompts of 32, 64 tokens. TTFT"),
        ({"shared_prefix": 9}, "Prompts of 32, 64 tokens after 9 that all begin with. TTFT"),
        ({"turns": 2}, "Prompts of 32, 64 tokens, 2 in a conversation. TTFT"),
        ({"trace": "day.jsonl"}, "The questions of day.jsonl at their times. TTFT"),
    ):
        assert said in text([made_up("serve", {"asked": asked | change, "loops": {}})])


def test_it_is_the_same_each_time_and_drops_old_drawings(folder) -> None:
    write(folder)
    (folder / "plots" / "gone").mkdir()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not (folder / "plots" / "gone").exists()


def test_targets_and_what_is_slower_come_first(folder) -> None:
    report = text(read_all(folder / RESULTS))
    _, targets, worse, *_ = report.split("\n## ")
    assert "32 at once | at least 4.5 times | 0.8 | **missed** | [small.json](results/small.json)" in targets
    assert "at least 0.95 times | 0.95 | met |" in targets
    assert "1 at once | at least 1.2 times |  | not measured |  |" in targets
    assert worse.startswith("What Quire is slower at")
    assert "| transformers static | 8 | 10 | 0.8 (0.4 to 1.6) | [small.json]" in worse
    assert "large.json" not in worse
    assert "32 at once | at least 4.5 times | 0.8 | [small.json]" in worse


def test_without_results_there_is_nothing_to_be_slower_at(made_up, contest) -> None:
    assert "slower at" not in text([])
    good = contest(rate=50, milliseconds=40)
    assert "no ratio is against Quire, and no target is missed" in text([made_up("compare", good)])


def test_a_gpu_is_named_only_where_a_result_names_one(made_up) -> None:
    plain = made_up("taste", {"sweet": 1})
    there = made_up("taste", {"sweet": 1}, gpu="Accelerator")
    unused = made_up("taste", {"sweet": 1, "device": "cpu"}, gpu="Accelerator")
    used = made_up("taste", {"sweet": 1, "device": "cuda"})
    assert [gpu_of(each) for each in (plain, there, unused, used)] == ["", "Accelerator", "", "cuda"]
    assert "**No GPU was measured:**" in text([plain, unused])
    report = text([plain, there])
    assert "No GPU" not in report
    assert "1.5 GiB, Accelerator;" in report


def test_what_is_no_result_file_is_told_by_name(tmp_path) -> None:
    for content in ("{", "[1]", '{"benchmark": "wire"}'):
        (tmp_path / "odd.json").write_text(content)
        with pytest.raises(ValueError, match=r"odd\.json is no result file"):
            read(tmp_path / "odd.json")


def test_the_simulator_says_how_far_it_is_off(folder) -> None:
    report = text(read_all(folder / RESULTS))
    assert "| poisson, 10 a second | +3.0 % | -12.5 % |" in report
    assert "It misses 8 others by 0.0 % in the mean" in report
    assert "![Fairness over tenants](plots/simulate/simulate_fairness.svg)" in report
    assert "| 2 workers |" in report
