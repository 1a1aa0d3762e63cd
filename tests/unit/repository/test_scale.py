"""The arithmetic of docs/scale.md follows from the committed results."""

import json
import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
STEP_MS, SEQUENCES, BUSY = "15", 128, 0.7


def results(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((ROOT / f"ops/bench/results/{name}.json").read_text())["results"]
    return found


def number(text: str) -> float:
    return float(text.replace(",", ""))


def paced() -> dict[int, dict[str, dict[str, float]]]:
    """What was measured with steps of 15 ms, by the number of sequences."""
    rows = results("paced")["by_step_ms"][STEP_MS]  # type: ignore[index]
    return {row["concurrency"]: row for row in rows}


def rows(heading: str) -> list[list[str]]:
    """The table whose first line begins so."""
    table = re.search(rf"^\| {heading}.*\n\|[-:|]+\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert table
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


COSTS = {name.partition(",")[0]: (number(cost), number(rate)) for name, cost, rate in rows(r"\| µs a token")}


def test_what_a_token_costs_was_measured() -> None:
    measured = paced()[SEQUENCES]["cpu_us_per_token"]
    assert {name.lower(): cost for name, (cost, _) in COSTS.items()} == measured
    for cost, rate in COSTS.values():
        assert rate == pytest.approx(BUSY * 1e6 / cost, rel=0.01)
    for sequences, cost in ((32, 45.8), (8, 85.4)):
        assert paced()[sequences]["cpu_us_per_token"]["gateway"] == cost
        assert f"{cost}" in TEXT


def test_what_redis_takes_was_measured() -> None:
    by_batch = results("one_redis")["by_batch"]
    for messages, said in (("32", "23,300"), ("256", "17,900")):
        assert said in TEXT
        limit = by_batch[messages]["limit"]["entries_per_second"]  # type: ignore[index]
        assert number(said) == pytest.approx(limit, rel=0.01)


def test_what_the_simulator_takes_was_measured() -> None:
    runs = results("simulate_scale")["runs"]
    micros = sorted(run["us_per_request"] for run in runs)  # type: ignore[attr-defined]
    assert f"{micros[0] / 1000:.2f} to {micros[-1] / 1000:.2f} ms" in TEXT


@pytest.mark.parametrize("row", rows("workers"), ids=lambda row: f"{row[0]} of {row[1]}")
def test_a_deployment_is_as_large_as_its_tokens_ask(row: list[str]) -> None:
    workers, steps, tokens, *processes, entries = map(number, row)
    for name, count in zip(("gateway", "tokenizer", "scheduler"), processes, strict=True):
        assert count == math.ceil(tokens * COSTS[name][0] / 1e6 / BUSY), name
    gateways, tokenizers, _ = processes
    exact = tokens / SEQUENCES / workers if steps == 64 else steps
    assert entries == pytest.approx(workers * exact * (2 + tokenizers + tokenizers * gateways), rel=0.01)
    assert entries < 23_300
