"""Where others are ahead is found, and nothing else."""

import pytest

from ops.bench.report.slower import COMPARISONS, slower
from ops.bench.wire import ratios


def test_more_is_better_of_rates_and_less_of_times(made_up, contest) -> None:
    good = made_up("compare", contest(rate=10.1, milliseconds=99.9))
    assert slower([good]) == []
    (rate,) = slower([made_up("compare", contest(rate=8, milliseconds=99.9))])
    assert (rate.what, rate.than) == ("output tokens/s (135m, bfloat16, 32 at once)", "transformers static")
    assert (rate.ours, rate.theirs, rate.times_slower) == (8, 10, 1.25)
    assert rate.ratio == {"median": 0.8, "lowest": 0.4, "highest": 1.6}
    (time,) = slower([made_up("compare", contest(rate=10.1, milliseconds=150))])
    assert time.what == "time to the first token, P99, ms (135m, bfloat16, 32 at once)"
    assert (time.ours, time.theirs, time.times_slower) == (150, 100, 1.5)


def test_the_worst_comes_first(made_up, contest) -> None:
    both = slower([made_up("compare", contest(rate=8, milliseconds=150))])
    assert [one.times_slower for one in both] == [1.5, 1.25]


def test_who_had_no_round_without_errors_is_not_compared(made_up, contest) -> None:
    results = contest(rate=1)
    results["loads"][0]["ratios"] = {"transformers static": {}}
    assert slower([made_up("compare", results)]) == []


def test_the_wire(made_up) -> None:
    def rounds(milliseconds: float, rate: float) -> dict[str, list[dict[str, float]]]:
        return {
            "unary": [{"p50_ms": milliseconds}] * 3,
            "steps": [{"messages_per_cpu_second": rate}] * 3,
            "flood": [{"messages_per_cpu_second": rate}] * 3,
        }

    def wire(redis: dict[str, list[dict[str, float]]], grpc: dict[str, list[dict[str, float]]]):
        both = {name: {"redis": redis[name], "grpc": grpc[name]} for name in redis}
        return made_up("wire", {"rounds": both, "ratios": ratios(both)})

    assert slower([wire(rounds(1, 9), rounds(2, 5))]) == []
    found = slower([wire(rounds(2, 5), rounds(1, 5.5))])
    assert [(one.ours, one.theirs) for one in found] == [(2, 1), (5, 5.5), (5, 5.5)]
    assert {one.than for one in found} == {"grpc.aio"}


def test_kernels(made_up) -> None:
    rows = {
        "1": {"bf16": {"us": 2.0}, "onednn_bf16": {"us": 3.0}},
        "64": {"bf16": {"us": 4.0}, "onednn_bf16": {"us": 2}},
    }
    (product,) = slower([made_up("linear", {"threads": 2, "135M": {"qkv": rows}})])
    assert product.what == "product qkv (135M, bfloat16, 64 rows), µs"
    assert product.times_slower == 2
    case = {"shape": "9 heads", "rows": 1, "tokens": 1, "context": 128}
    decodes = [case | {"GB/s": own, "GB/s of PyTorch": 4.0} for own in (2.0, 8.0)]
    chunks = [case | {"GFLOP/s": own, "GFLOP/s of PyTorch": 4.0} for own in (8.0, 3.0)]
    found = slower([made_up("attention", {"decodes": decodes, "chunks": chunks})])
    assert [one.times_slower for one in found] == [2, pytest.approx(4 / 3)]


def test_other_kinds_have_nobody_else_in_them(made_up) -> None:
    assert "in-process" not in COMPARISONS
    assert slower([made_up("in-process", {}), made_up("anything", {})]) == []
