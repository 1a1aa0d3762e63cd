"""`quire plan-memory`: how much of a model and its KV cache fits into some memory."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from gpu_worker.kernels.kv_sizes import ROW_BYTES, TYPES
from ops.cli.arguments import positive
from ops.kv_memory import ModelFilesError, kv_shape, loaded_bytes, plan, read_config, weights_bytes
from ops.runtime.hub import HubError, fetched

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def add_to(subcommands: Any) -> None:
    command = subcommands.add_parser("plan-memory", help="what a model takes, and how many requests fit")
    command.add_argument("--model", type=Path, required=True, metavar="MODEL", help="directory or id")
    command.add_argument(
        "--memory", type=_memory, default="8GiB", metavar="SIZE", help="default: %(default)s"
    )
    command.add_argument("--block-size", type=positive, default=16, metavar="TOKENS", help="default: 16")
    command.add_argument(
        "--dtype", choices=[*TYPES, *ROW_BYTES], default="bfloat16", help="of keys and values"
    )
    command.add_argument(
        "--context", type=positive, default=2048, metavar="TOKENS", help="length of a request; default: 2048"
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        directory = fetched(options.model)
        shape = kv_shape(read_config(directory))
        stored, weights = weights_bytes(directory), loaded_bytes(directory)
    except (ModelFilesError, HubError) as error:
        print(f"quire: {error}", file=sys.stderr)
        return 2
    fits = plan(shape, weights, options.memory, options.block_size, options.dtype, options.context)
    print(f"attention   {shape.kind}, {shape.layers} layers")
    wider = "" if weights == stored else f", {_readable(weights)} with quantized ones in bfloat16"
    print(f"weights     {_readable(stored)} as stored{wider}")
    print(f"KV          {_readable(shape.token_bytes(options.dtype))} a token in {options.dtype}")
    print(f"blocks      {fits.blocks} of {options.block_size} tokens, {_readable(fits.block_bytes)} each")
    print(f"requests    {fits.requests} of {options.context} tokens in {_readable(options.memory)}")
    if shape.window:
        print(f"window      {shape.window} tokens in some layers or all; counted as if there were none")
    return 0


def _memory(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]iB)?", text)
    if match is None:
        raise argparse.ArgumentTypeError("must be bytes, or a number with KiB, MiB, GiB or TiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def _readable(size: int) -> str:
    unit = max((u for u in _UNITS if _UNITS[u] <= size), key=_UNITS.__getitem__, default="")
    return f"{size / _UNITS[unit]:.4g} {unit or 'bytes'}"
