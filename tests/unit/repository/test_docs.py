"""What the documentation names exists: targets, commands, options, modules, settings, files."""

import re
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from ops.cli.main import parser
from ops.runtime.metric_names import BY_NAME
from ops.runtime.settings import ProcessSettings

ROOT = Path(__file__).parents[3]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
SERVICES = {
    "gateway": "gateway",
    "tokenizer_svc": "tokenizer",
    "scheduler_svc": "scheduler",
    "gpu_worker": "worker",
}


def settings_classes() -> dict[str, type[ProcessSettings]]:
    """The settings of every service, by the service's name in the table."""
    found = {}
    for path in sorted(ROOT.glob("*/settings.py")):
        package = path.parent.name
        if package == "ops":
            continue
        module = import_module(f"{package}.settings")
        (found[SERVICES[package]],) = [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, ProcessSettings)
            and value.__module__ == module.__name__
        ]
    return found


def known_settings() -> set[str]:
    classes = [ProcessSettings, *settings_classes().values()]
    return {f"QUIRE_{field.upper()}" for each in classes for field in each.model_fields}


def texts(pattern: str) -> list[tuple[str, str]]:
    """(page, first group) of everything in the pages that the pattern matches."""
    return [
        (page.name, match.group(1).strip())
        for page in PAGES
        for match in re.finditer(pattern, page.read_text(), re.MULTILINE)
    ]


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = texts(r"(?:^|`)make ([a-z-]+)")
    assert named
    assert [entry for entry in named if entry[1] not in targets] == []


@pytest.mark.parametrize(
    "command", ["up", "down", "status", "batch", "chat", "bench compare", "simulate", "quantize", "replay"]
)
def test_quire_options_exist(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        parser().parse_args([*command.split(), "--help"])
    assert ended.value.code == 0
    used = {
        option
        for _, line in texts(rf"quire {command}\b([^`#\n]*)")
        for option in re.findall(r"--[a-z]+", line)
    }
    assert used <= set(re.findall(r"--[a-z]+", capsys.readouterr().out))


def test_quire_commands_exist() -> None:
    named = {command for _, command in texts(r"quire (up|down|status|[a-z]+)(?= --|`|$|  )")}
    known = {"up", "down", "status", "batch", "chat", "keys", "top", "bench", "simulate", "quantize"}
    assert named <= known | {"record", "replay"}


def test_modules_exist() -> None:
    named = texts(r"python -m ([a-z_.]+)")
    assert named
    assert [entry for entry in named if find_spec(entry[1].rstrip(".")) is None] == []


def test_settings_that_are_named_exist() -> None:
    named = texts(r"(QUIRE_[A-Z_]+)\b")
    assert [entry for entry in named if entry[1] not in known_settings()] == []


def test_the_settings_table_is_complete_and_right() -> None:
    rows = re.findall(r"^\| `QUIRE_(\w+)` \| (.*?) \| (.*?) \|", (ROOT / "docs/operate.md").read_text(), re.M)
    table = {name.lower(): (default, services) for name, default, services in rows}
    fields: dict[str, dict[str, str]] = {}
    for service, settings in settings_classes().items():
        for name, field in settings.model_fields.items():
            default = "" if field.default in ("", None, PydanticUndefined) else str(field.default)
            fields.setdefault(name, {})[service] = default
    assert table.keys() == fields.keys()
    for name, defaults in fields.items():
        default, services = table[name]
        if not default.startswith("("):  # in words, where it is worked out
            assert {default.strip("`")} == set(defaults.values()), name
        everyone = len(defaults) == len(settings_classes())
        assert services == ("all" if everyone else ", ".join(sorted(defaults))), name


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_paths_that_are_named_exist() -> None:
    named = texts(r"`((?:docs|ops|proto|gateway|tokenizer_svc|scheduler_svc|gpu_worker|tests)/[\w./*-]*)`")
    assert named
    assert [entry for entry in named if not any(ROOT.glob(entry[1].rstrip("/")))] == []


RECIPES = (
    *("sampling parameter", "endpoint", "policy", "model family", "kernel", "KV format", "weight format"),
    *("source of drafts", "service", "field of a contract", "setting"),
)
"""Kinds of changes that docs/extend.md has a recipe for."""


def recipes() -> dict[str, str]:
    """Text of each section of docs/extend.md, by its heading without the article."""
    _, *sections = re.split(r"^## An? (.+)$", (ROOT / "docs/extend.md").read_text(), flags=re.MULTILINE)
    return dict(zip(sections[::2], sections[1::2], strict=True))


@pytest.mark.parametrize("kind", RECIPES)
def test_a_recipe_lists_files_that_exist(kind: str) -> None:
    steps = re.split(r"^\d+\. ", recipes()[kind], flags=re.MULTILINE)[1:]
    assert len(steps) >= 2
    for step in steps:
        files = [
            name
            for name in re.findall(r"`([\w./-]+)`", step)
            if "/" in name or name.endswith((".toml", ".yml"))
        ]
        assert files, f"a step that names no file: {step}"
        assert [name for name in files if not (ROOT / name).exists()] == []


def test_the_drawing_of_folders_is_the_linter_s() -> None:
    """The layers that docs/understand.md draws are import-linter's, in its order."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = {contract["id"]: contract.get("layers") for contract in contracts}
    drawing = (ROOT / "docs/understand.md").read_text().split("\n## Folders\n")[1]
    services = re.search(r"^services +(.+?)  {2,}", drawing, re.MULTILINE)
    assert services
    assert re.split(r" *\| *", services[1]) == layers["services"][1].split(" | ")
    for folder, contract in (("gpu_worker", "worker"), ("gpu_worker/kernels", "back-ends")):
        line = re.search(rf"^{folder} +(.+)$", drawing, re.MULTILINE)
        assert line
        drawn = [set(re.split(r" *\| *", layer)) for layer in line[1].split(" ─▶ ")]
        held = [set(layer.split(" | ")) for layer in layers[contract]]
        places = [next(place for place, layer in enumerate(held) if each <= layer) for each in drawn]
        assert places == sorted(set(places)), f"{folder}: {places}"


def test_every_metric_is_documented_and_no_other() -> None:
    text = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8").partition("## Metrics\n")[2]
    section = text.partition("\n## ")[0]
    named = set(re.findall(r"`((?:vllm|quire):[a-z0-9_]+)`", section))
    assert {name.removesuffix("_total") for name in named} == {
        name.removesuffix("_total") for name in BY_NAME
    }
    for name, metric in BY_NAME.items():
        if name.startswith("quire:"):
            assert f" | {metric.kind} | {metric.help}" in section, name
