"""`quire quantize`: a copy of a model with weights of fewer bits."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ops.cli.arguments import add_command
from ops.cli.output import silence
from ops.model_directory.hub import fetched
from ops.runtime.errors import StartError

KINDS = ("int4", "int8", "fp8")

_DESCRIPTION = """\
Write a copy of a model whose weights have 4 or 8 bits, in the format of compressed-tensors, which
Quire, vLLM and transformers read. Embeddings, head and routers stay as they are.

  quire quantize ~/models/llama ~/models/llama-int4 --to int4 --text book.txt

With a text it states the perplexity of the copy beside that of the original, each computed as a
worker computes it; QUIRE_DEVICE, QUIRE_DTYPE and the worker's other settings hold.
"""


def add_to(subcommands: Any) -> None:
    command = add_command(subcommands, "quantize", "write a copy of a model in 4 or 8 bits", _DESCRIPTION)
    command.add_argument("source", type=Path, metavar="IN", help="directory or id")
    command.add_argument("target", type=Path, metavar="OUT", help="directory, which does not exist yet")
    command.add_argument("--to", choices=KINDS, required=True, help="type of the weights")
    command.add_argument("--text", type=Path, metavar="FILE", help="text whose perplexity is stated")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        from gpu_worker.errors import WorkerError
        from ops.quantize.checkpoint import QuantizeError, quantize
        from ops.quantize.perplexity import perplexity
        from tokenizer_svc.errors import ModelDirectoryError
    except ModuleNotFoundError as error:
        print(f"quire quantize: {error.name} is not installed: it needs what a worker needs", file=sys.stderr)
        return 2
    try:
        text = options.text.read_text(encoding="utf-8") if options.text else ""
        source = fetched(options.source, _say)
        report = quantize(source, options.target, options.to, _say)
        before, after = report.bytes_before / 2**20, report.bytes_after / 2**20
        share = report.quantized / max(1, report.quantized + report.plain)
        _say(f"{options.target}: {after:.1f} MiB instead of {before:.1f}, {share:.1%} in {options.to}")
        if text:
            one, other = (perplexity(each.absolute(), text) for each in (source, options.target))
            of = options.text.name
            _say(f"perplexity of {of}: {other:.4f}, {other / one:.4f} times the original's {one:.4f}")
    except (QuantizeError, WorkerError, ModelDirectoryError, StartError, OSError, ValueError) as error:
        print(f"quire quantize: {error}", file=sys.stderr)
        return 2
    return 0


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        silence(sys.stdout)
