"""Calls of the Berkeley Function Calling Leaderboard in every format: `python -m tests.bfcl [--stride 7]`.

Its package brings questions, the functions that are offered, and the right calls. Of each case a grammar is
made that allows nothing but these calls. An answer that it accepts, drawn at random, must be read as these
calls, wherever it is cut. The grammar of the functions as they are offered must accept a right call, too, if
that is right by their own schemas. The package is downloaded without what it requires, 2 MB, and is kept.
Prints a line for each format; the exit status is 1 if a call was read wrongly or was not accepted.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs

from gateway.api.parsers.calls import functions_of
from gateway.api.parsers.splitter import Splitter
from ops.model_directory.grammars import GrammarError
from tests.clients.environments import cache_folder
from tests.unit.gateway.api.parsers.test_splitter import form_of, thoughts_of
from tests.unit.tokenizer_svc.grammars.test_call_grammar import END, Model
from tokenizer_svc.formats.call_table import CALLS
from tokenizer_svc.formats.formats import ThoughtRules
from tokenizer_svc.grammars.call_rules import CallRules, Function

PACKAGE = "bfcl-eval==2026.3.23"
CATEGORIES = (
    *("simple_python", "multiple", "parallel", "parallel_multiple"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
)
"""Those whose right calls are values of JSON."""
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""What JSON Schema calls otherwise."""


@dataclass(frozen=True)
class Case:
    """What one question offers, and wants."""

    name: str
    functions: dict[str, Any]
    """JSON Schemas of arguments, by name."""
    calls: list[tuple[str, dict[str, Any]]]


def package(folder: Path) -> Path:
    """The package as it was published, in `folder`. Raises `CalledProcessError`."""
    if not (found := sorted(folder.glob("bfcl_eval-*.whl"))):
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(folder),
            PACKAGE,
        ]
        subprocess.run(pip, check=True)
        found = sorted(folder.glob("bfcl_eval-*.whl"))
    return found[0]


def cases(wheel: Path) -> Iterator[Case]:
    """All of them."""
    with zipfile.ZipFile(wheel) as files:
        for category in CATEGORIES:
            asked, right = (
                [json.loads(line) for line in files.read(f"bfcl_eval/data/{path}.json").splitlines()]
                for path in (f"BFCL_v4_{category}", f"possible_answer/BFCL_v4_{category}")
            )
            truths = {each["id"]: each["ground_truth"] for each in right}
            for each in asked:
                offered = {_name(one["name"]): _schema(one["parameters"]) for one in each["function"]}
                calls = [call for truth in truths[each["id"]] for call in truth.items()]
                yield Case(each["id"], offered, [(_name(name), _chosen(values)) for name, values in calls])


def _name(name: str) -> str:
    """Names have letters, digits, and two marks; a dot is none of them."""
    return name.replace(".", "_")


def _schema(told: Any) -> Any:
    if isinstance(told, list):
        return [_schema(each) for each in told]
    if not isinstance(told, dict):
        return told
    found = {key: _schema(value) for key, value in told.items()}
    match found.get("type"):
        case "any":
            del found["type"]
        case str(name):
            found["type"] = TYPES.get(name, name)
    return found


def _chosen(options: dict[str, list[Any]]) -> dict[str, Any]:
    """Of what each argument may be the first one. An empty text means that it may be left out."""
    first = {name: next((each for each in values if each != ""), None) for name, values in options.items()}
    return {name: _plain(value) for name, value in first.items() if value is not None}


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return _chosen({name: each if isinstance(each, list) else [each] for name, each in value.items()})
        case list():
            return [_plain(each) for each in value]
    return value


def _ordered(value: Any, schema: Any) -> Any:
    """The same value. Its properties are in the order of their schemas, in which a grammar wants them."""
    match value:
        case dict():
            properties = schema.get("properties", {})
            names = [name for name in properties if name in value]
            names += [name for name in value if name not in properties]
            return {name: _ordered(value[name], properties.get(name, {})) for name in names}
        case list():
            return [_ordered(each, schema.get("items", {})) for each in value]
    return value


def _only(arguments: dict[str, Any], offered: dict[str, Any] | None = None) -> dict[str, Any]:
    """The schema of nothing but these arguments. `offered`: the properties of which they are values, if these
    are known: some formats spell a text in another way where other values may stand."""
    properties = {}
    for name, value in arguments.items():
        is_text = isinstance(value, str) if offered is None else offered[name].get("type") == "string"
        properties[name] = {"enum": [value]} | ({"type": "string"} if is_text else {})
    return {
        "type": "object",
        "properties": properties,
        "required": list(arguments),
        "additionalProperties": False,
    }


class Tried:
    """What came of the cases in one format."""

    def __init__(self, model: Model, calls: str) -> None:
        self._model, self._calls = model, calls
        self._before = ThoughtRules(thoughts_of(calls, "think"), model.special)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []

    def add(self, case: Case) -> None:
        """Try one."""
        wanted = {f"{name}_{number}": arguments for number, (name, arguments) in enumerate(case.calls)}
        schemas = {name: _only(arguments) for name, arguments in wanted.items()}
        rules = self._rules(schemas)
        try:
            text = self._drawn(rules, case.name)
        except GrammarError as error:
            self.counts["refused: " + str(error).partition(":")[2][:60]] += 1
            return
        for cut in range(3):
            found = self._read(text, schemas, random.Random(f"{case.name} {cut}"))
            if not found or any(wanted[name] != arguments for name, arguments in found):
                self.problems.append(f"{self._calls}, {case.name}: {text!r} was read as {found}")
                return
        self.counts["calls"] += len(found)
        self.counts["cases"] += 1

    def offered(self, case: Case) -> None:
        """Whether the grammar of the functions as they are offered accepts what a right answer may be."""
        name, arguments = case.calls[0]
        schema = case.functions.get(name, False) and case.functions[name] | {"additionalProperties": False}
        if not jsonschema_rs.is_valid(schema, arguments):
            self.counts["wrong by their own schemas"] += 1
            return
        try:
            only = _only(_ordered(arguments, schema), schema["properties"])
            text = self._drawn(self._rules({name: only}, single=True), case.name)
            if self._model.takes(self._rules(case.functions, single=True), text):
                self.counts["offered"] += 1
            else:
                self.problems.append(f"{self._calls}, {case.name}: {text!r} is not accepted")
        except GrammarError as error:
            self.counts["refused: " + str(error)[:80]] += 1

    def _drawn(self, rules: CallRules, seed: str) -> str:
        """A random answer that the grammar accepts. Raises `GrammarError`."""
        draw, matcher, tokens = random.Random(seed), self._model.matcher(rules), []
        while not (matcher.is_accepting() and draw.random() < 0.5):
            if not (found := matcher.compute_ff_tokens()):
                bits = int.from_bytes(matcher.compute_bitmask(), "little") & ~(1 << END)
                if not bits:
                    break
                found = [draw.choice([token for token in range(bits.bit_length()) if bits >> token & 1])]
            assert matcher.consume_tokens(found), matcher.get_error()
            tokens += found
        text: str = self._model.tokenizer.decode(tokens, skip_special_tokens=False)
        return text

    def _rules(self, schemas: dict[str, Any], single: bool = False) -> CallRules:
        functions = [Function(name, schema) for name, schema in schemas.items()]
        return CallRules(functions, self._calls, self._before, required=True, single=single)

    def _read(self, text: str, schemas: dict[str, Any], draw: random.Random) -> list[tuple[str, Any]]:
        """The calls of `text`, which comes in pieces."""
        tools = [{"function": {"name": name, "parameters": schema}} for name, schema in schemas.items()]
        splitter = Splitter(form_of(self._calls, self._before.thoughts), functions_of(tools))
        places = sorted(draw.randrange(len(text)) for _ in range(draw.randrange(9)))
        pieces = [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]
        calls = [call for each in (*map(splitter.add, pieces), splitter.finish()) for call in each.calls]
        return [(call.name, json.loads(call.arguments)) for call in calls]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stride", type=int, default=1, help="every so many cases only")
    stride = parser.parse_args().stride
    folder = cache_folder() / "bfcl"
    folder.mkdir(parents=True, exist_ok=True)
    every = list(cases(package(folder)))[::stride]
    wrong = 0
    with tempfile.TemporaryDirectory() as place:
        model = Model(Path(place), True)
        for calls in CALLS:
            tried = Tried(model, calls)
            for case in every:
                tried.add(case)
                tried.offered(case)
            told = ", ".join(f"{count} {what}" for what, count in sorted(tried.counts.items()))
            print(
                f"{calls}: {told}; {len(tried.problems)} wrong", *tried.problems[:5], sep="\n  ", flush=True
            )
            wrong += len(tried.problems)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
