"""`quire up`: start a deployment on this machine."""

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ops.cli.arguments import add_command, positive
from ops.cli.output import silence
from ops.launcher.deployments import logs_directory
from ops.launcher.detach import in_background
from ops.launcher.installed import check_installed
from ops.launcher.launch import launch
from ops.launcher.served import adapters_asked_for, asked_for
from ops.launcher.specs import Options
from ops.launcher.welcome import quire_command, welcome
from ops.model_directory.hub import HubError, fetched, fetched_adapter
from ops.runtime.errors import LaunchError
from scheduler_svc.core.policies import POLICIES

_DESCRIPTION = """\
Start redis, worker, scheduler, tokenizer and gateway on this machine, wait until the model
answers, and keep them running: a process that dies is started again. Ctrl-C ends them all.

  quire up                                   the model that ships with Quire, on port 8000
  quire up --model ~/models/llama            another model (a Hugging Face directory)
  quire up --model ~/models/llama.gguf       a model of llama.cpp
  quire up --model org/name                  one of the Hugging Face Hub, fetched if it is not in the cache
  quire up --model big=org/name --model ~/models/llama    two models behind one address
  quire up --lora-modules sql=~/adapters/sql the model, and a LoRA adapter of it
  quire up --workers 2 --detach              two workers, in the background
  quire up --port 8123                       another port, as of a second deployment

Without a Redis of yours (QUIRE_REDIS_URL) it starts one of its own. All other QUIRE_* settings
of the environment are passed on to the services; docs/operate.md lists them.
"""


def add_to(subcommands: Any) -> None:
    up = add_command(subcommands, "up", "start everything and serve a model", _DESCRIPTION)
    up.add_argument(
        "--model",
        action="append",
        metavar="[NAME=]MODEL",
        default=[],
        help="directory with config.json, *.safetensors and tokenizer.json, or GGUF file, or id of the "
        "Hugging Face Hub, org/name or org/name@revision (default: the shipped model); once for each model",
    )
    up.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        default=1,
        help="worker processes of each model, each with the whole model (default: 1)",
    )
    up.add_argument(
        "--port",
        type=port,
        metavar="P",
        default=os.environ.get("QUIRE_PORT") or "8000",
        help="TCP port of the HTTP API (default: 8000)",
    )
    up.add_argument("--device", choices=("auto", "cpu", "cuda"), help="where the model runs (default: auto)")
    up.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        help="number format of the model (default: auto: the model's own; see docs/operate.md for CPUs)",
    )
    up.add_argument("--policy", choices=POLICIES, help="which requests run first (default: fcfs)")
    up.add_argument(
        "--speculation",
        choices=("off", "ngram", "draft", "mtp"),
        help="where drafts come from (default: ngram)",
    )
    up.add_argument(
        "--lora-modules",
        nargs="+",
        metavar="NAME=ADAPTER",
        default=[],
        help="LoRA adapters beside the model: directories with adapter_config.json and "
        "adapter_model.safetensors, or ids of the Hugging Face Hub; a request names one as its model",
    )
    up.add_argument("--detach", action="store_true", help="return when it answers and leave it running")
    up.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    options = Options(
        models=asked_for(arguments.model),
        workers=arguments.workers,
        port=arguments.port,
        device=arguments.device,
        dtype=arguments.dtype,
        policy=arguments.policy,
        speculation=arguments.speculation,
        adapters=adapters_asked_for(arguments.lora_modules),
    )
    if arguments.detach:
        return in_background(
            lambda ready: _serve(options, ready, f"`{quire_command()} down` stops it."),
            log=logs_directory(options.port) / "launcher.log",
        )
    return _serve(options, lambda: None, "Ctrl-C stops it.")


def _serve(asked: Options, ready: Callable[[], None], how_to_stop: str) -> int:
    def on_ready() -> None:
        _say(f"\n{welcome(options)}\n{how_to_stop}\n")
        ready()

    try:
        check_installed()
        # Once, before there are processes that would all want it.
        models = tuple(replace(each, path=fetched(each.path, _say)) for each in asked.models)
        adapters = {name: fetched_adapter(each, _say) for name, each in asked.adapters.items()}
        options = replace(asked, models=models, adapters=adapters)
        asyncio.run(launch(options, _say, on_ready))
    except (LaunchError, HubError) as error:
        print(f"quire up: {error}", file=sys.stderr, flush=True)
        return error.exit_status
    return 0


def _say(line: str) -> None:
    """Print a line. A deployment goes on when its output leads nowhere any more.

    The reader of a pipe may go (`quire up | head -1`), a terminal be closed, a disk be full.
    """
    try:
        print(line, flush=True)
    except OSError:
        silence(sys.stdout)


def port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError("must be between 1 and 65535")
    return number
