"""`quire plan-memory`: how much of a model and its KV cache fits into some memory."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from gpu_worker.kernels.kv_sizes import ROW_BYTES, TYPES
from ops.cli.arguments import positive
from ops.kv_memory import ModelFilesError, kv_shape, loaded_bytes, plan, read_config, weights_bytes
from ops.model_directory.hub import HubError, fetched
from ops.model_directory.settings import SHIPPED_MODEL

_UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DECIMAL = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def add_to(subcommands: Any) -> None:
    command = subcommands.add_parser(
        "plan-memory",
        help="what a model takes, and how many requests fit",
        description="Say how much memory a model's weights and a token's keys and values take, and how many "
        "requests fit.",
    )
    command.add_argument(
        "--model",
        type=Path,
        default=SHIPPED_MODEL,
        metavar="MODEL",
        help="directory, GGUF file, or id of the Hugging Face Hub (default: the shipped model)",
    )
    command.add_argument(
        "--memory",
        type=_memory,
        default="8GiB",
        metavar="SIZE",
        help="such as 24GiB (2**30 bytes each) or 24GB (10**9); default: %(default)s",
    )
    command.add_argument(
        "--block-size", type=positive, metavar="TOKENS", help="default: 16, more with recurrent layers"
    )
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
    size = options.block_size or shape.usual_block_size(options.dtype)
    fits = plan(shape, weights, options.memory, size, options.dtype, options.context)
    print(f"attention   {shape.kind}, {shape.layers} layers")
    wider = "" if weights == stored else f", {_readable(weights)} with quantized ones in bfloat16"
    print(f"weights     {_readable(stored)} as stored{wider}")
    print(f"KV          {_readable(shape.token_bytes(options.dtype))} a token in {options.dtype}")
    if shape.states:
        count = len(shape.states)
        print(f"states      {_readable(shape.state_bytes)} a block, of {count} recurrent layers")
    print(f"blocks      {fits.blocks} of {size} tokens, {_readable(fits.block_bytes)} each")
    print(f"requests    {fits.requests} of {options.context} tokens in {_readable(options.memory)}")
    if weights > options.memory:
        short = _readable(weights - options.memory)
        print(f"quire: the weights alone need {short} more than {_readable(options.memory)}", file=sys.stderr)
        return 1
    if shape.window:
        print(f"window      {shape.window} tokens in some layers or all; counted as if there were none")
    return 0


def _memory(text: str) -> int:
    """Bytes of a size with its unit: decimal ones, as disks and GPUs are sold, or binary ones."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]i?b)", text.strip(), re.IGNORECASE)
    if match is None:
        unit = ": which unit?" if text.strip().replace(".", "", 1).isdigit() else ""
        raise argparse.ArgumentTypeError(f"{text}{unit or ': no size'} (such as 24GiB or 24GB)")
    units = {name.lower(): size for name, size in (_UNITS | _DECIMAL).items()}
    return int(float(match[1]) * units[match[2].lower()])


def _readable(size: int) -> str:
    unit = max((u for u in _UNITS if _UNITS[u] <= size), key=_UNITS.__getitem__, default="")
    return f"{size / _UNITS[unit]:.4g} {unit}" if unit else f"{size} bytes"
