"""Answers to random JSON Schemas at temperature 1, all of which must be valid, while processes are killed.

`python -m ops.bench.robust.json_answers [--answers 2000] [--kills 9] [--seed 1]` starts a deployment of the
shipped model with two of every service behind the gateway, which drafts with the small model beside it. Every
second request asks for two answers, which fork. Workers, schedulers and tokenizers are killed meanwhile. The
exit status is 1 if an answer is not valid, or if a request was not answered.
"""

import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs

from ops.bench.command import parser
from ops.bench.record import write
from ops.bench.robust.faults import BEHIND, KINDS, Fault
from ops.bench.robust.json_schemas import FOLLOWED, Schema, drawn, keywords
from ops.bench.robust.rig import REPLICAS, Rig

USERS = 16
MOST_TOKENS = 1500
"""Of an answer. One that is longer is cut off, and counted as such."""
LEASE_SECONDS = 3.0
ANSWER_SECONDS = 300.0
(KILLED,) = (kind for kind in KINDS if kind.name == "killed")


@dataclass
class Answers:
    """What came of all requests."""

    valid: int = 0
    cut_off: int = 0
    """Answers that were not complete after `MOST_TOKENS`."""
    problems: list[str] = field(default_factory=list)
    """Answers that are not valid, and requests that were refused."""
    followed: Counter[str] = field(default_factory=Counter)
    """Valid answers, by the keywords of their schemas."""
    tokens: int = 0

    @property
    def count(self) -> int:
        return self.valid + self.cut_off + len(self.problems)

    def add(self, schema: Schema, status: int, answer: dict[str, Any]) -> None:
        """Take the answer to one request."""
        if status != 200:
            self.problems.append(f"{status} {json.dumps(answer)[:300]} to {json.dumps(schema)}")
            return
        self.tokens += answer["usage"]["completion_tokens"]
        for choice in answer["choices"]:
            text = choice["message"]["content"]
            if choice["finish_reason"] == "length":
                self.cut_off += 1
            elif problem := problem_of(schema, text):
                self.problems.append(f"{problem}: {text!r} to {json.dumps(schema)}")
            else:
                self.valid += 1
                self.followed.update(set(keywords(schema)))


def problem_of(schema: Schema, text: str) -> str:
    """Why the text is no JSON that the schema allows; empty if it is. Formats count."""
    try:
        jsonschema_rs.Draft202012Validator(schema, validate_formats=True).validate(json.loads(text))
    except ValueError as error:  # the validator's own error is one, too
        return str(error).splitlines()[0] or type(error).__name__
    return ""


def body(model: str, schema: Schema, seed: int, n: int) -> dict[str, Any]:
    """A request for `n` answers."""
    named = {"name": "drawn", "schema": schema, "strict": True}
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Give me JSON for a story about a fox."}],
        "response_format": {"type": "json_schema", "json_schema": named},
        "max_tokens": MOST_TOKENS,
        "temperature": 1,
        "top_p": 1,
        "seed": seed,
        "n": n,
    }


def requests(model: str, answers: int, seed: int) -> Iterator[tuple[Schema, dict[str, Any]]]:
    """Schemas and requests for at least that many answers."""
    number = asked = 0
    while asked < answers:
        schema = drawn(random.Random(f"{seed} {number}"))
        n = 1 + number % 2
        yield schema, body(model, schema, number, n)
        number, asked = number + 1, asked + n


async def ask_all(rig: Rig, answers: int, kills: int, seed: int) -> Answers:
    """Ask a running deployment, and kill processes at even distances meanwhile."""
    found, due = Answers(), requests(rig.model, answers, seed)
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=rig.url, timeout=ANSWER_SECONDS, limits=limits, trust_env=False) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(USERS):
            group.create_task(_user(client, due, found))
        for number in range(kills):
            while found.count < (number + 1) * answers / (kills + 1):
                await asyncio.sleep(0.05)
            await rig.whole()
            name = random.Random(f"{seed} kill {number}").choice(rig.named(BEHIND[number % len(BEHIND)]))
            async with Fault(KILLED, name, 0, replaceable=True).happening(rig):
                print(f"{found.count} answers; killed {name}", flush=True)
    return found


async def _user(
    client: httpx.AsyncClient, due: Iterator[tuple[Schema, dict[str, Any]]], found: Answers
) -> None:
    for schema, asked in due:
        answer = await client.post("/v1/chat/completions", json=asked)
        found.add(schema, answer.status_code, answer.json())


async def run(answers: int, kills: int, seed: int, directory: Path) -> dict[str, Any]:
    """Start a deployment, ask it, and tell what came of it."""
    rig = Rig(directory, LEASE_SECONDS, speculation="draft")
    async with rig.running():
        begun = time.monotonic()
        found = await ask_all(rig, answers, kills, seed)
        seconds = time.monotonic() - begun
    return {
        "deployment": {**REPLICAS, "redis": 1, "drafts": "draft model"},
        "killed": kills,
        "minutes": round(seconds / 60, 1),
        "answers": found.count,
        "valid": found.valid,
        "cut_off": found.cut_off,
        "not_valid_or_refused": len(found.problems),
        "tokens": found.tokens,
        "valid_by_keyword": {name: found.followed[name] for name in sorted(FOLLOWED)},
        "problems": found.problems[:20],
    }


def main() -> None:
    command = parser(__doc__, "json_answers.json")
    command.add_argument("--answers", type=int, default=2000)
    command.add_argument("--kills", type=int, default=9)
    command.add_argument("--seed", type=int, default=1)
    options = command.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-json-") as folder:
        results = asyncio.run(run(options.answers, options.kills, options.seed, Path(folder)))
    write(options.out, "json_answers", options.seed, results)
    print(json.dumps(results, indent=2))
    sys.exit(1 if results["not_valid_or_refused"] else 0)


if __name__ == "__main__":
    main()
