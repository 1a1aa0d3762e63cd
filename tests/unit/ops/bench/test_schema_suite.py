"""Whether schemas are followed, by cases such as JSON Schema's test suite has."""

import json
from pathlib import Path

import pytest

from ops.bench.schema_suite import Case, Compile, cases, llguidance, outcome
from ops.model_directory.settings import SHIPPED_MODEL


@pytest.fixture(scope="module")
def compiled() -> Compile:
    return llguidance(SHIPPED_MODEL)


INTEGER = json.dumps({"type": "integer", "minimum": 3})
OBJECT = json.dumps({"properties": {"a": {}, "b": {}}, "required": ["a"]})


@pytest.mark.parametrize(
    ("schema", "values", "found"),
    [
        (INTEGER, (("3", True), ("2", False), ('"3"', False), ("[]", False)), "followed"),
        (OBJECT, (('{"a": 1, "b": 2}', True), ('{"b": 2, "a": 1}', True)), "too narrow"),
        (INTEGER, (("3", False),), "too wide"),
        (INTEGER, (("3", False), ("2", True)), "too wide"),
        (json.dumps({"not": {}}), (("1", False),), "refused"),
    ],
)
def test_what_becomes_of_a_schema(
    compiled: Compile, schema: str, values: tuple[tuple[str, bool], ...], found: str
) -> None:
    assert outcome(compiled, Case(schema, values)) == found


def test_cases_are_read_and_those_with_schemas_from_elsewhere_left_out(tmp_path: Path) -> None:
    groups = [
        {"schema": {"type": "integer"}, "tests": [{"data": 1.5, "valid": False}, {"data": 1, "valid": True}]},
        {"schema": {"$ref": "http://localhost:1234/integer.json"}, "tests": []},
    ]
    (tmp_path / "type.json").write_text(json.dumps(groups), encoding="utf-8")
    assert list(cases(tmp_path)) == [Case('{"type": "integer"}', (("1.5", False), ("1", True)))]
