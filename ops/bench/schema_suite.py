"""Which JSON Schemas grammars follow: `python -m ops.bench.schema_suite SUITE [--out FILE]`.

SUITE is a folder of JSON Schema's own test suite, such as `tests/draft2020-12`. It has schemas, and values
that they take or refuse. Each schema is compiled as the tokenizer service does it and, if the package is
installed, with xgrammar. Then it is seen whether an answer may be exactly one of the values.

A library follows a schema if it is right about each value. It is too narrow if it refuses only values that
the schema takes, such as an object in another order; too wide if it allows some that the schema refuses.
"""

import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from transformers import AutoTokenizer

from ops.bench.command import parser
from ops.bench.record import aligned, write
from ops.model_directory.end_tokens import end_tokens_in
from ops.model_directory.grammars import Vocabulary
from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.grammars.grammar_text import grammar_text

OUTCOMES = ("followed", "too narrow", "too wide", "refused")

Allows = Callable[[str], bool]
"""Whether an answer may be this text."""
Compile = Callable[[str], Allows]
"""Compiles a JSON Schema. Raises any exception if it refuses it."""


class Case(NamedTuple):
    """A schema, and values that it takes or refuses."""

    schema: str
    values: tuple[tuple[str, bool], ...]


def cases(suite: Path) -> Iterator[Case]:
    """The cases of a folder, without those that need schemas from elsewhere."""
    for path in sorted(suite.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            values = tuple((json.dumps(test["data"]), test["valid"]) for test in group["tests"])
            schema = json.dumps(group["schema"])
            if "http://localhost:1234" not in schema:  # where the suite's own server would be
                yield Case(schema, values)


def llguidance(model: Path) -> Compile:
    """As the tokenizer service compiles a schema that must be followed."""
    vocabulary = Vocabulary(model, 0, end_tokens_in(model))
    encode = AutoTokenizer.from_pretrained(model).encode

    def compiled(schema: str) -> Allows:
        matcher = vocabulary.matcher(grammar_text("json_schema", schema))

        def allows(text: str) -> bool:
            tokens = encode(text, add_special_tokens=False)
            whole = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
            matcher.reset()
            return bool(whole)

        return allows

    return compiled


def xgrammar(model: Path) -> Compile:
    library = importlib.import_module("xgrammar")
    ends = end_tokens_in(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    info = library.TokenizerInfo.from_huggingface(tokenizer, stop_token_ids=ends)
    compiler = library.GrammarCompiler(info, max_threads=1)

    def compiled(schema: str) -> Allows:
        grammar = compiler.compile_json_schema(schema)

        def allows(text: str) -> bool:
            matcher = library.GrammarMatcher(grammar)
            return bool(matcher.accept_string(text) and matcher.accept_token(ends[0]))

        return allows

    return compiled


def outcome(compiled: Compile, case: Case) -> str:
    """One of `OUTCOMES`."""
    try:
        allows = compiled(case.schema)
    except Exception:  # each library has its own
        return "refused"
    wrong = {valid for text, valid in case.values if allows(text) != valid}
    return "too wide" if False in wrong else "too narrow" if wrong else "followed"


def main() -> None:
    command = parser(__doc__)
    command.add_argument("suite", type=Path, help="folder with the suite's files for one draft")
    command.add_argument("--model", type=Path, default=SHIPPED_MODEL, help="directory with its tokenizer")
    options = command.parse_args()
    libraries = {"llguidance": llguidance(options.model)}
    if find_spec("xgrammar"):
        libraries["xgrammar"] = xgrammar(options.model)
    every = list(cases(options.suite))
    if not every:
        command.error(f"{options.suite} has no cases")
    found: Mapping[str, Counter[str]] = {
        name: Counter(outcome(compiled, case) for case in every) for name, compiled in libraries.items()
    }
    print(aligned([("", *found), *((what, *(str(of[what]) for of in found.values())) for what in OUTCOMES)]))
    if options.out is not None:
        results: dict[str, Any] = {"draft": options.suite.name, "schemas": len(every)}
        counts = {name: {what: of[what] for what in OUTCOMES} for name, of in found.items()}
        write(options.out, "schema-suite", 0, {**results, "libraries": counts})


if __name__ == "__main__":
    main()
