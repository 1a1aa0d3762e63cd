"""Tests mirror modules: `tests/unit/a/b/test_c.py` is about `a/b/c.py`, or about the package `a/b/c`."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "tests" / "unit"
APART = {"behaviour", "repository"}
"""Folders of tests that are about no single module: what several do together, and the repository itself."""


def modules_of(test: Path) -> list[Path]:
    """Where the module of a test file may lie. That of `test_main.py` is `__main__.py` or `main.py`."""
    *folders, name = test.relative_to(UNIT).with_suffix("").parts
    home, name = ROOT.joinpath(*folders), name.removeprefix("test_")
    if folders[:1] == ["support"]:
        home = ROOT.joinpath("tests", *folders)
    return [home / f"{name}.py", home / name / "__init__.py", home / f"__{name}__.py"]


def test_every_test_file_is_named_after_its_module() -> None:
    tests = [path for path in UNIT.rglob("test_*.py") if not APART & set(path.relative_to(UNIT).parts)]
    assert len(tests) > 100
    strays = [path for path in tests if not any(module.exists() for module in modules_of(path))]
    assert [str(path.relative_to(ROOT)) for path in strays] == []
