"""Compile times of JSON Schemas: what is counted, and by which library."""

from itertools import count
from types import SimpleNamespace

import pytest

from ops.bench import grammars
from ops.model_directory.settings import SHIPPED_MODEL


def test_times_are_those_of_the_schemas_that_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks at the clock a second passes."""
    seconds = count()
    monkeypatch.setattr(grammars, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    compiled = grammars.llguidance(SHIPPED_MODEL)
    schemas = ['{"type": "null"}', '{"not": {}}', '{"type": "null"}']
    found = grammars.measure({"one": compiled, "other": compiled}, schemas, rounds=2)
    assert found["one"] == found["other"]
    assert found["one"] == {
        "schemas compiled": 2,
        "compiling, P50, ms": 1000.0,
        "compiling, P99, ms": 1000.0,
        "first mask, P50, ms": 1000.0,
        "first mask, P99, ms": 1000.0,
    }


def test_the_first_mask_is_that_of_the_schema() -> None:
    mask = grammars.llguidance(SHIPPED_MODEL)('{"type": "null"}')()
    assert 0 < sum(octet.bit_count() for octet in mask) < 10
