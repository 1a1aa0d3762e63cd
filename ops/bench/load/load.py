"""Loads: conversations in a closed loop (a number at once) or an open one (beginning at given times)."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ops.bench.load.client import Answer, CompletionClient
from ops.bench.load.workload import Question
from ops.bench.record import percentiles

Progress = Callable[[int], None]
Conversations = Sequence[Sequence[Question]]


@dataclass(frozen=True)
class Bound:
    """The latency that an answer must keep to count as good. Seconds."""

    first_token: float = float("inf")
    between_tokens: float = float("inf")
    """Mean over the answer."""

    def kept_by(self, answer: Answer) -> bool:
        gaps = answer.gaps
        mean = sum(gaps) / len(gaps) if gaps else 0.0
        return answer.time_to_first_token <= self.first_token and mean <= self.between_tokens


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
    goodput: float
    """Requests a second that kept the bound."""
    first_token: dict[str, float]
    between_tokens: dict[str, float]
    end_to_end: dict[str, float]


async def closed_loop(
    client: CompletionClient,
    conversations: Conversations,
    concurrency: int,
    progress: Progress = lambda _: None,
) -> tuple[list[Answer], float]:
    """Hold all conversations, `concurrency` at a time. The answers and the seconds it took."""
    waiting = iter(conversations)
    answers: list[Answer] = []

    async def user() -> None:
        for conversation in waiting:
            for question in conversation:
                answers.append(await client.ask(question))
                progress(len(answers))

    begun = time.perf_counter()
    await asyncio.gather(*(user() for _ in range(concurrency)))
    return answers, time.perf_counter() - begun


async def open_loop(
    client: CompletionClient,
    conversations: Conversations,
    times: Sequence[float],
    progress: Progress = lambda _: None,
) -> tuple[list[Answer], float]:
    """Begin each conversation at its time (seconds from now), however many are still going on."""
    answers: list[Answer] = []

    async def user(conversation: Sequence[Question], at: float) -> None:
        await asyncio.sleep(begun + at - time.perf_counter())
        for question in conversation:
            answers.append(await client.ask(question))
            progress(len(answers))

    begun = time.perf_counter()
    await asyncio.gather(*map(user, conversations, times))
    return answers, time.perf_counter() - begun


def summarize(answers: Sequence[Answer], seconds: float, bound: Bound | None = None) -> Summary:
    good = [answer for answer in answers if not answer.error]
    prompt_tokens = sum(answer.prompt_tokens for answer in good)
    output_tokens = sum(answer.output_tokens for answer in good)
    kept = sum(map((bound or Bound()).kept_by, good))
    return Summary(
        requests=len(answers),
        errors=len(answers) - len(good),
        seconds=round(seconds, 3),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_rate=round(output_tokens / seconds, 1),
        total_rate=round((prompt_tokens + output_tokens) / seconds, 1),
        goodput=round(kept / seconds, 3),
        first_token=_percentiles([answer.time_to_first_token for answer in good]),
        between_tokens=_percentiles([gap for answer in good for gap in answer.gaps]),
        end_to_end=_percentiles([answer.ended - answer.sent for answer in good]),
    )


def _percentiles(seconds: list[float]) -> dict[str, float]:
    return percentiles([1000 * each for each in seconds], (50, 90, 99), 3) if seconds else {}
