"""Loads: questions asked in a closed loop (so many at once) or an open one (so many a second)."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ops.bench.client import Answer, CompletionClient
from ops.bench.record import percentile
from ops.bench.workload import Question

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Summary:
    """A load in numbers. Times in milliseconds, rates per second."""

    requests: int
    errors: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    output_rate: float
    total_rate: float
    first_token: dict[str, float]
    between_tokens: dict[str, float]
    end_to_end: dict[str, float]


async def closed_loop(
    client: CompletionClient,
    questions: Sequence[Question],
    concurrency: int,
    progress: Progress = lambda _: None,
) -> tuple[list[Answer], float]:
    """Ask all questions, `concurrency` at a time. The answers and the seconds it took."""
    waiting = iter(questions)
    answers: list[Answer] = []

    async def user() -> None:
        for question in waiting:
            answers.append(await client.ask(question))
            progress(len(answers))

    begun = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(concurrency)))
    return answers, time.perf_counter() - begun


async def open_loop(
    client: CompletionClient,
    questions: Sequence[Question],
    rate: float,
    seed: int,
    progress: Progress = lambda _: None,
) -> tuple[list[Answer], float]:
    """Ask `rate` questions a second with Poisson arrivals, however many are still unanswered."""
    chance = random.Random(seed)
    answers: list[Answer] = []

    async def user(question: Question, at: float) -> None:
        await asyncio.sleep(begun + at - time.perf_counter())
        answers.append(await client.ask(question))
        progress(len(answers))

    begun, at, users = time.perf_counter(), 0.0, []
    for question in questions:
        at += chance.expovariate(rate)
        users.append(user(question, at))
    await asyncio.gather(*users)
    return answers, time.perf_counter() - begun


def summarize(answers: Sequence[Answer], seconds: float) -> Summary:
    good = [answer for answer in answers if not answer.error]
    prompt_tokens = sum(answer.prompt_tokens for answer in good)
    output_tokens = sum(answer.output_tokens for answer in good)
    return Summary(
        requests=len(answers),
        errors=len(answers) - len(good),
        seconds=round(seconds, 3),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_rate=round(output_tokens / seconds, 1),
        total_rate=round((prompt_tokens + output_tokens) / seconds, 1),
        first_token=_percentiles([answer.time_to_first_token for answer in good]),
        between_tokens=_percentiles([gap for answer in good for gap in answer.gaps]),
        end_to_end=_percentiles([answer.ended - answer.sent for answer in good]),
    )


def _percentiles(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"p{share}": round(1000 * percentile(seconds, share / 100), 3) for share in (50, 90, 99)}
