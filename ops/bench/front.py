"""What streams cost in front of the worker: CPU time of the gateway and the tokenizer, memory, and waiting.

`python -m ops.bench.front [--out FILE]` starts deployments of the shipped model whose worker computes nothing
(`ops.bench.paced`), and measures three things. What 64 streams at once cost the gateway and the tokenizer, a
token; and what a request costs them whose answer is one token, alone and with 63 others. How much memory
2,000 streams take there, most of which wait. How much longer other streams wait for a token while prompts of
100,000 tokens come.
"""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil

from ops.bench.chain import under_load
from ops.bench.command import parser
from ops.bench.load.client import CompletionClient
from ops.bench.load.load import closed_loop
from ops.bench.load.processes import cpu_seconds
from ops.bench.load.workload import Workload
from ops.bench.long_contexts import stretched
from ops.bench.paced import deployed, process_ids
from ops.bench.record import percentile, write
from ops.bench.robust.hostile_grammars import Streams
from ops.launcher.served import Served

FRONT = ("gateway", "tokenizer")
AT_ONCE = 64
ANSWER = 256
FIRST_TOKENS = 300
"""Requests whose answer is one token."""
STREAMS = 2000
PROMPT_TOKENS = 100_000
PROMPTS = 5
CONTEXT = 131_072
START_SECONDS = 120.0
JSON = {"Content-Type": "application/json"}


async def costs(seed: int, users: int = AT_ONCE, requests: int = FIRST_TOKENS) -> dict[str, Any]:
    """CPU time of the processes in front: microseconds a token, and milliseconds a request of one token."""
    long = Workload(prompt_lengths=(32,), output_lengths=(ANSWER, ANSWER))
    short = Workload(prompt_lengths=(32,), output_lengths=(1, 1))
    async with deployed(15.0, users) as (options, supervisor, redis):
        client = CompletionClient(options.url, options.model_names[0])
        await closed_loop(client, long.conversations(users, seed + 1), users)  # warm up
        used = partial(cpu_seconds, process_ids(supervisor, redis))
        load = await under_load(client, used, long.conversations(2 * users, seed), users)
        first = {}
        for at_once in (1, users):
            before = used()
            await closed_loop(client, short.conversations(requests, seed + at_once), at_once)
            after = used()
            each = {name: round((after[name] - before[name]) / requests * 1000, 3) for name in FRONT}
            first[f"{at_once} at once"] = each | {"both": round(sum(each.values()), 3)}
    token = {name: load["cpu_us_per_token"][name] for name in FRONT}
    return {
        "at_once": users,
        "cpu_us_per_token": token | {"both": round(sum(token.values()), 1)},
        "requests": requests,
        "cpu_ms_per_request": first,
    }


async def idle(streams: int = STREAMS) -> dict[str, Any]:
    """Memory of the gateway and the tokenizer in MB: before any stream, and what `streams` of them add."""
    room = str(2 * streams + 64)
    settings = {"QUIRE_TOKENIZER_CALLS": room, "QUIRE_MAX_REQUESTS": room}
    async with deployed(1000.0, AT_ONCE, settings=settings) as (options, supervisor, redis):
        processes = process_ids(supervisor, redis)
        client = CompletionClient(options.url, options.model_names[0])
        await closed_loop(client, Workload(output_lengths=(1, 1)).conversations(8, 1), 8)  # warm up
        before = _memory(processes)
        body = {"model": options.model_names[0], "prompt": "A fox", "max_tokens": 1000, "stream": True}
        opened = [await _open(options.url, body | {"ignore_eos": True}) for _ in range(streams)]
        await _under_way(options.url, streams)
        after = _memory(processes)
        for _, writer in opened:
            writer.close()
    grown = {name: round(after[name] - before[name], 1) for name in FRONT}
    return {
        "streams": streams,
        "before_mb": before,
        "grown_mb": grown | {"both": round(sum(grown.values()), 1)},
    }


async def _open(url: str, body: Mapping[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for a stream that nobody reads."""
    place, text = urlsplit(url), json.dumps(body)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(text)}\r\n\r\n{text}".encode())
    return reader, writer


async def _under_way(url: str, streams: int) -> None:
    """Return once `streams` answers are under way. Raises `TimeoutError`."""
    waiting = httpx.AsyncClient(base_url=url, timeout=START_SECONDS, trust_env=False)
    async with waiting as client, asyncio.timeout(START_SECONDS):
        while (await client.get("/load")).json()["server_load"] < streams:
            await asyncio.sleep(0.2)


def _memory(processes: Mapping[str, int]) -> dict[str, float]:
    """Memory that only these processes have, in MB."""
    used = {name: psutil.Process(processes[name]).memory_full_info().uss for name in FRONT}
    return {name: round(size / 1e6, 1) for name, size in used.items()}


async def beside_long_prompts(tokens: int = PROMPT_TOKENS, prompts: int = PROMPTS) -> dict[str, Any]:
    """Milliseconds between the tokens of other streams, beside long prompts and alone."""
    with stretched(CONTEXT) as model:
        async with (
            deployed(20.0, AT_ONCE, Served(model, "stretched")) as (options, _, _),
            httpx.AsyncClient(base_url=options.url, timeout=300, trust_env=False) as client,
        ):
            streams = Streams(client, "stretched")
            # Written down before: what the client takes for that is no delay of the server's.
            bodies = [_long_prompt(number, tokens) for number in range(prompts + 1)]
            counted: list[int] = []

            async def ask(number: int) -> None:
                answer = await client.post("/v1/completions", content=bodies[number], headers=JSON)
                answer.raise_for_status()
                counted.append(answer.json()["usage"]["prompt_tokens"])

            async def all_of_them() -> None:
                for number in range(1, prompts + 1):
                    await ask(number)

            await ask(0)
            begun = asyncio.get_running_loop().time()
            beside = await streams.gaps_while(all_of_them())
            alone = await streams.gaps_while(asyncio.sleep(asyncio.get_running_loop().time() - begun))
    return {
        "prompt_tokens": min(counted),
        "prompts": prompts,
        "between_tokens_ms": {"beside": _spread(beside), "alone": _spread(alone)},
        "extra_ms": round(1000 * (max(beside) - max(alone)), 1),
    }


def _long_prompt(number: int, tokens: int) -> bytes:
    """A request. Each is new to the prefix cache, and a short word is about a token."""
    text = f"{number}" + " and so" * (tokens // 2)
    return json.dumps({"model": "stretched", "prompt": text, "max_tokens": 1}).encode()


def _spread(gaps: list[float]) -> dict[str, float]:
    shares = {"p50": percentile(gaps, 0.5), "p99": percentile(gaps, 0.99), "longest": max(gaps)}
    return {name: round(1000 * value, 1) for name, value in shares.items()}


def main() -> None:
    command = parser(__doc__, "front.json")
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    results = {
        "costs": asyncio.run(costs(options.seed)),
        "idle": asyncio.run(idle()),
        "long_prompts": asyncio.run(beside_long_prompts()),
    }
    write(options.out, "front", options.seed, results)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
