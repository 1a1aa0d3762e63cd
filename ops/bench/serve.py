"""One server under load: what `quire bench serve` does."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from ops.bench.load.client import CompletionClient
from ops.bench.load.load import Bound, Progress, Summary, closed_loop, open_loop, summarize
from ops.bench.load.workload import Workload, arrivals, from_trace
from ops.bench.record import aligned, write
from ops.runtime.api_keys import authorization


@dataclass(frozen=True)
class Load:
    """What to ask, how fast, and what counts as good."""

    workload: Workload
    requests: int
    """Conversations per measurement."""
    concurrency: tuple[int, ...]
    """Closed loops, one measurement each; empty with `rate` or `trace`."""
    rate: float | None
    """Open loop: conversations a second."""
    trace: Path | None
    """Open loop: a file of questions."""
    bound: Bound
    seed: int


def model_of(url: str) -> str:
    """The first model that a server offers. Raises `RuntimeError` with one line if it cannot be had."""
    try:
        answer = httpx.get(f"{url}/v1/models", headers=authorization(), timeout=10, trust_env=False)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise RuntimeError(f"no model at {url}: {error}") from None


def measure(client: CompletionClient, load: Load) -> list[tuple[str, Summary]]:
    """A summary for each loop, by the loop's name."""
    return [_closed(client, load, users) for users in load.concurrency] or [_open(client, load)]


def _closed(client: CompletionClient, load: Load, users: int) -> tuple[str, Summary]:
    # Other prompts in every loop: none is in a cache because an earlier loop asked for it.
    conversations = load.workload.conversations(load.requests, load.seed * 10_000 + users)
    name = f"{users} at once"
    with _bar(name, sum(map(len, conversations))) as progress:
        answers, seconds = asyncio.run(closed_loop(client, conversations, users, progress))
    return name, summarize(answers, seconds, load.bound)


def _open(client: CompletionClient, load: Load) -> tuple[str, Summary]:
    if load.trace is not None:
        conversations, times = from_trace(load.trace)
        name = load.trace.name
    else:
        assert load.rate is not None
        conversations = load.workload.conversations(load.requests, load.seed)
        times = list(arrivals(load.requests, load.rate, load.seed))
        name = f"{load.rate:g} a second"
    with _bar(name, sum(map(len, conversations))) as progress:
        answers, seconds = asyncio.run(open_loop(client, conversations, times, progress))
    return name, summarize(answers, seconds, load.bound)


def save(path: Path, url: str, model: str, load: Load, summaries: Sequence[tuple[str, Summary]]) -> None:
    """Write the summaries, with what they are summaries of, as a result file."""
    asked: dict[str, Any] = asdict(load.workload) | {
        "requests": load.requests,
        "trace": str(load.trace or ""),
    }
    loops = {name: asdict(summary) for name, summary in summaries}
    write(path, "serve", load.seed, {"url": url, "model": model, "asked": asked, "loops": loops})


def table(summaries: Sequence[tuple[str, Summary]]) -> str:
    """The summaries for a person; times in milliseconds."""
    head = (
        "load",
        "errors",
        "out tok/s",
        "all tok/s",
        "good/s",
        "TTFT p50",
        "p99",
        "ITL p50",
        "p99",
        "E2E p50",
        "p99",
    )
    rows: list[tuple[str, ...]] = [head]
    for name, one in summaries:
        times = [
            f"{kind.get(share, float('nan')):.1f}"
            for kind in (one.first_token, one.between_tokens, one.end_to_end)
            for share in ("p50", "p99")
        ]
        rates = (f"{one.output_rate:.1f}", f"{one.total_rate:.1f}", f"{one.goodput:.2f}")
        rows.append((name, str(one.errors), *rates, *times))
    return aligned(rows)


@contextmanager
def _bar(name: str, total: int) -> Iterator[Progress]:
    """A progress bar on a terminal's standard error; nothing elsewhere."""
    columns = TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn()
    console = Console(stderr=True)
    with rich.progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.update(task, completed=done)
