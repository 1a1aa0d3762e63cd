"""What the chain of processes costs: CPU time outside the worker, and time before the first token.

`python -m ops.bench.chain [--out FILE]` starts a deployment of the shipped model on this machine and
measures it from outside. Run it on a machine that does nothing else.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ops.bench.command import parser
from ops.bench.load.client import CompletionClient
from ops.bench.load.load import Conversations, closed_loop, summarize
from ops.bench.load.processes import cpu_seconds, running
from ops.bench.load.workload import Workload
from ops.bench.record import percentile, percentiles, write
from ops.bench.rig.peer import Peer
from ops.launcher.deployments import Deployment
from ops.model_directory.settings import SHIPPED_MODEL

CONCURRENCY = 32
REQUESTS = 192
FIRST_TOKEN_PROMPT = 32
ROUNDS = 10
ASKS_PER_ROUND = 10


async def under_load(
    client: CompletionClient,
    cpu_seconds: Callable[[], Mapping[str, float]],
    questions: Conversations,
    users: int,
) -> dict[str, Any]:
    """What `users` users get from a deployment, and microseconds of CPU a generated token in each process.

    `cpu_seconds`: what each process has used so far.
    """
    before = cpu_seconds()
    answers, seconds = await closed_loop(client, questions, users)
    after = cpu_seconds()
    summary = summarize(answers, seconds)
    if summary.errors:
        raise RuntimeError(next(answer.error for answer in answers if answer.error))
    per_token = {
        name: round((after[name] - before[name]) / summary.output_tokens * 1e6, 1) for name in sorted(after)
    }
    outside = sum(cost for name, cost in per_token.items() if not name.startswith("worker"))
    return {
        "concurrency": users,
        "output_tokens": summary.output_tokens,
        "output_rate": summary.output_rate,
        "first_token_ms": summary.first_token,
        "between_tokens_ms": summary.between_tokens,
        "cpu_us_per_token": per_token,
        "cpu_us_per_token_outside_worker": round(outside, 1),
    }


async def cpu_per_token(deployment: Deployment, seed: int) -> dict[str, Any]:
    """`under_load` of `CONCURRENCY` requests at once."""
    client = CompletionClient(deployment.url, deployment.model)
    workload = Workload()
    await closed_loop(client, workload.conversations(CONCURRENCY, seed + 1), CONCURRENCY)  # warm up
    questions = workload.conversations(REQUESTS, seed)
    found = await under_load(client, partial(cpu_seconds, deployment.pids), questions, CONCURRENCY)
    return found | {"prompt_lengths": workload.prompt_lengths}


def first_token(deployment: Deployment, seed: int) -> dict[str, Any]:
    """Time to the first token over HTTP beside the bare step in a process of its own, in turns."""
    client = CompletionClient(deployment.url, deployment.model)
    workload = Workload(prompt_lengths=(FIRST_TOKEN_PROMPT,), output_lengths=(1, 1))
    chain: list[float] = []
    bare: list[float] = []
    settings = {"QUIRE_DTYPE": "float32", "QUIRE_LOG_LEVEL": "WARNING"}
    with Peer("ops.bench.rig.bare", QUIRE_MODEL=str(SHIPPED_MODEL), **settings) as model:
        for number in range(-1, ROUNDS):  # the first round warms up
            questions = workload.conversations(ASKS_PER_ROUND, seed + number)
            answers, _ = asyncio.run(closed_loop(client, questions, 1))
            steps = json.loads(model.ask(f"{FIRST_TOKEN_PROMPT} {ASKS_PER_ROUND} {seed + number}"))
            if number >= 0:
                chain += [answer.time_to_first_token * 1000 for answer in answers]
                bare += steps
    return {
        "prompt_tokens": FIRST_TOKEN_PROMPT,
        "asked": len(chain),
        "chain_ms": percentiles(chain, (10, 50, 90), 3),
        "bare_step_ms": percentiles(bare, (10, 50, 90), 3),
        "above_bare_step_p50_ms": round(percentile(chain, 0.5) - percentile(bare, 0.5), 3),
    }


def main() -> None:
    command = parser(__doc__, "chain.json")
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    with running() as deployment:
        results = {
            "first_token": first_token(deployment, options.seed),
            "cpu": asyncio.run(cpu_per_token(deployment, options.seed)),
        }
    write(options.out, "chain", options.seed, results)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
