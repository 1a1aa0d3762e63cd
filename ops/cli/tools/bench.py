"""`quire bench`: measurements."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ops.cli.arguments import add_command, gateway_url, numbers, positive, span
from ops.cli.tools import bench_compare, bench_mechanisms, bench_step

_DESCRIPTION = """\
Put a load on any server with an OpenAI-compatible API, and print what it does under it.

  quire bench serve                                        the running deployment, 1, 8 and 32 at once
  quire bench serve --rate 4 --requests 200                an open loop: 4 requests a second, Poisson
  quire bench serve --prompt-lengths 64 --shared-prefix 512 --turns 3
  quire bench serve --url http://127.0.0.1:9000 --out other.json

Prompts are drawn token ids, the same for the same --seed. Times are milliseconds: TTFT to the first
token, ITL between tokens, E2E to the end. An API key, where one is needed, is taken from OPENAI_API_KEY.
"""


def add_to(subcommands: Any) -> None:
    bench = subcommands.add_parser("bench", help="measure a server")
    kinds = bench.add_subparsers(title="what", metavar="WHAT", required=True)
    serve = add_command(kinds, "serve", "a server under load", _DESCRIPTION)
    serve.add_argument("--url", help="the server (default: the running deployment)")
    serve.add_argument("--model", help="name of the model (default: the first that is offered)")
    serve.add_argument(
        "--requests", type=positive, default=96, metavar="N", help="conversations per loop (96)"
    )
    loop = serve.add_mutually_exclusive_group()
    loop.add_argument(
        "--concurrency", type=numbers, default=(1, 8, 32), metavar="N,N", help="requests at once (1,8,32)"
    )
    loop.add_argument("--rate", type=_seconds, metavar="R", help="open loop: requests a second, Poisson")
    loop.add_argument(
        "--trace", type=Path, metavar="FILE", help='open loop: JSON lines of {"prompt", "max_tokens", "at"}'
    )
    serve.add_argument(
        "--prompt-lengths", type=numbers, default=(32, 128, 512), metavar="N,N", help="tokens (32,128,512)"
    )
    serve.add_argument(
        "--output", type=span, default=(64, 64), metavar="N[:M]", help="tokens of an answer (64)"
    )
    serve.add_argument(
        "--shared-prefix", type=int, default=0, metavar="N", help="tokens that all prompts begin with"
    )
    serve.add_argument(
        "--turns", type=positive, default=1, metavar="N", help="questions of a conversation (1)"
    )
    serve.add_argument(
        "--good-ttft",
        type=_seconds,
        default=float("inf"),
        metavar="S",
        help="good answers: seconds to the first token",
    )
    serve.add_argument(
        "--good-itl",
        type=_seconds,
        default=float("inf"),
        metavar="S",
        help="good answers: seconds between tokens",
    )
    serve.add_argument("--seed", type=int, default=0)
    serve.add_argument("--out", type=Path, metavar="FILE", help="also write the result as JSON")
    serve.set_defaults(run=run_serve)
    for command in (bench_compare, bench_step, bench_mechanisms):
        command.add_to(kinds)


def run_serve(arguments: argparse.Namespace) -> int:
    from ops.bench import serve  # its libraries are for this command alone
    from ops.bench.load.client import CompletionClient
    from ops.bench.load.load import Bound
    from ops.bench.load.workload import Workload

    url = gateway_url(arguments.url)
    load = serve.Load(
        workload=Workload(
            arguments.prompt_lengths, arguments.output, arguments.shared_prefix, arguments.turns
        ),
        requests=arguments.requests,
        concurrency=() if arguments.rate or arguments.trace else arguments.concurrency,
        rate=arguments.rate,
        trace=arguments.trace,
        bound=Bound(arguments.good_ttft, arguments.good_itl),
        seed=arguments.seed,
    )
    try:
        model = arguments.model or serve.model_of(url)
        summaries = serve.measure(CompletionClient(url, model), load)
    except (RuntimeError, ValueError, OSError) as error:
        print(f"quire bench: {error}", file=sys.stderr)
        return 1
    print(serve.table(summaries))
    if arguments.out is not None:
        serve.save(arguments.out, url, model, load, summaries)
    return 1 if any(summary.errors for _, summary in summaries) else 0


def _seconds(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError("must be above 0")
    return number
