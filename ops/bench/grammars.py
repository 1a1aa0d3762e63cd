"""How long JSON Schemas take to compile: `python -m ops.bench.grammars [--model DIRECTORY] [--out FILE]`.

The hundred random schemas of the tests are compiled with llguidance as the tokenizer service does it and, if
the package is installed, with xgrammar, in turns, by one thread and without a cache. A library may leave work
to the first mask, so its time is reported, too.
"""

import importlib
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from transformers import AutoTokenizer

from ops.bench.command import parser
from ops.bench.record import aligned, percentile, write
from ops.bench.robust.json_schemas import drawn
from ops.model_directory.end_tokens import end_tokens_in
from ops.model_directory.grammars import Vocabulary
from ops.model_directory.settings import SHIPPED_MODEL
from tokenizer_svc.grammars.grammar_text import grammar_text

SCHEMAS = 100
ROUNDS = 5

Mask = Callable[[], Any]
"""Finds the tokens that an answer may begin with."""
Compile = Callable[[str], Mask]
"""Compiles a JSON Schema. Raises any exception if it refuses it."""


def llguidance(model: Path) -> Compile:
    vocabulary = Vocabulary(model, 0, end_tokens_in(model))

    def compiled(schema: str) -> Mask:
        return vocabulary.matcher(grammar_text("json_schema", schema)).compute_bitmask

    return compiled


def xgrammar(model: Path) -> Compile:
    library = importlib.import_module("xgrammar")
    tokenizer = AutoTokenizer.from_pretrained(model)
    info = library.TokenizerInfo.from_huggingface(tokenizer, stop_token_ids=end_tokens_in(model))
    compiler = library.GrammarCompiler(info, max_threads=1, cache_enabled=False)
    mask = library.allocate_token_bitmask(1, info.vocab_size)

    def compiled(schema: str) -> Mask:
        matcher = library.GrammarMatcher(compiler.compile_json_schema(schema))
        return lambda: matcher.fill_next_token_bitmask(mask)

    return compiled


def measure(libraries: Mapping[str, Compile], schemas: Sequence[str], rounds: int) -> dict[str, Any]:
    """Milliseconds of each library: percentiles over the schemas, of the median of the rounds."""
    times: dict[str, dict[int, list[tuple[float, float]]]] = {name: defaultdict(list) for name in libraries}
    for _ in range(rounds):
        for number, schema in enumerate(schemas):
            for name, compiled in libraries.items():
                started = time.perf_counter()
                try:
                    mask = compiled(schema)
                except Exception:  # each library has its own
                    continue
                done = time.perf_counter()
                mask()
                times[name][number].append((1e3 * (done - started), 1e3 * (time.perf_counter() - done)))
    return {name: _summary(list(found.values())) for name, found in times.items()}


def _summary(found: Sequence[Sequence[tuple[float, float]]]) -> dict[str, float]:
    """`found`: milliseconds of compiling and of the first mask, by schema and round."""
    result: dict[str, float] = {"schemas compiled": len(found)}
    for part, name in enumerate(("compiling", "first mask")):
        each = [median(one[part] for one in rounds) for rounds in found]
        for share in (50, 99):
            result[f"{name}, P{share}, ms"] = round(percentile(each, share / 100), 3)
    return result


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--model", type=Path, default=SHIPPED_MODEL, help="directory with its tokenizer")
    command.add_argument("--rounds", type=int, default=ROUNDS)
    options = command.parse_args()
    libraries = {"llguidance": llguidance(options.model)}
    if find_spec("xgrammar"):
        libraries["xgrammar"] = xgrammar(options.model)
    schemas = [json.dumps(drawn(random.Random(f"test {number}"))) for number in range(SCHEMAS)]
    found = measure(libraries, schemas, options.rounds)
    columns = next(iter(found.values()))
    print(aligned([("", *found), *((name, *(str(of[name]) for of in found.values())) for name in columns)]))
    if options.out is not None:
        results = {"model": options.model.name, "schemas": len(schemas), "rounds": options.rounds}
        write(options.out, "grammars", 0, {**results, "libraries": found})


if __name__ == "__main__":
    main()
