"""The programs beside the tests, which no test runs from their beginning, can be imported."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAMS = [
    path
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if not path.name.startswith("test_") and '__name__ == "__main__"' in path.read_text()
]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_program_can_be_imported(path: Path) -> None:
    importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
