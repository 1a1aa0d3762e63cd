"""Streams that are asked for again and again; every answer is compared to the one in peace."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

Choices = dict[int, tuple[str, list[int], str]]
"""Text, tokens and finish reason of each choice."""

TOKENS = 120
RETRY_SECONDS = 0.2
COME_AGAIN = (429, 503)
"""Statuses that tell a client to ask again later."""
SILENT_SECONDS = 60.0
"""A stream without a sign for so long is lost."""


@dataclass(frozen=True)
class Question:
    """A streamed request."""

    path: str
    body: dict[str, Any]


def questions(model: str, count: int) -> list[Question]:
    """`count` different questions: chat and completions, greedy and seeded, some with samples or stops."""
    found = []
    for number in range(count):
        body: dict[str, Any] = {
            "model": model,
            "stream": True,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        if number % 4 < 2:
            body["temperature"] = 0
        else:
            body |= {"temperature": 0.9, "seed": number, "n": 1 + (number % 8 == 7)}
        if number % 5 == 4:
            body["stop"] = ["\n\n"]
        text = f"Once upon a time, {number + 2} animals met in a forest."
        if number % 2:
            found.append(Question("/v1/chat/completions", {**body, "messages": [_said(text)]}))
        else:
            found.append(Question("/v1/completions", {**body, "prompt": text}))
    return found


def _said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class Refused(Exception):
    """The answer did not begin: the gateway said at once that it cannot serve now."""


class Lost(Exception):
    """The answer began and did not come to its end, or the request was ended for good."""


async def ask(
    client: httpx.AsyncClient, question: Question, on_tokens: Callable[[int], None] = lambda _: None
) -> Choices:
    """The answer. `on_tokens` gets the number of new tokens of each event. Raises `Refused` or `Lost`."""
    choices: Choices = {}
    begun = ended = False
    try:
        async with client.stream("POST", question.path, json=question.body) as answer:
            if answer.status_code != 200:
                # Any other error, such as that of a request which is held to be the reason of deaths, is one.
                kind = Refused if answer.status_code in COME_AGAIN else Lost
                raise kind(f"{answer.status_code}: {(await answer.aread()).decode()}")
            begun = True
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    ended = True
                elif line.startswith("data: "):
                    on_tokens(_take(choices, json.loads(line.removeprefix("data: "))))
    except httpx.HTTPError as error:
        raise (Lost if begun else Refused)(f"{type(error).__name__} {error}") from None
    if not ended:
        raise Lost("the stream ended without its end mark")
    return choices


def _take(choices: Choices, event: dict[str, Any]) -> int:
    """Add an event to the answer; the number of its tokens."""
    if "error" in event:
        raise Lost(str(event["error"]))
    count = 0
    for choice in event["choices"]:
        text, tokens, reason = choices.get(choice["index"], ("", [], ""))
        piece = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        new = choice.get("token_ids") or []
        choices[choice["index"]] = (text + piece, tokens + new, choice["finish_reason"] or reason)
        count += len(new)
    return count


@dataclass
class Tally:
    """What became of all requests."""

    accepted: int = 0
    completed: int = 0
    identical: int = 0
    different: int = 0
    refused: int = 0
    """Not accepted; asked again later."""
    refusals: set[str] = field(default_factory=set)
    """What was said to those."""
    tokens: int = 0
    tokens_lost: int = 0
    tokens_repeated: int = 0
    problems: list[str] = field(default_factory=list)
    """The first ones of the answers that were lost or different."""

    @property
    def lost(self) -> int:
        """Accepted, and never completed."""
        return self.accepted - self.completed

    def compare(self, question: Question, found: Choices, expected: Choices) -> None:
        """Count a completed answer."""
        self.accepted += 1
        self.completed += 1
        for index in found.keys() | expected.keys():
            came, due = (len(one.get(index, ("", [], ""))[1]) for one in (found, expected))
            self.tokens += came
            self.tokens_lost += max(0, due - came)
            self.tokens_repeated += max(0, came - due)
        if found == expected:
            self.identical += 1
            return
        self.different += 1
        self.problem(f"{question}: {found} where {expected} was due")

    def problem(self, text: str) -> None:
        if len(self.problems) < 10:
            self.problems.append(text[:2000])


class Streams:
    """Users without a pause, each with a question of its own."""

    def __init__(self, client: httpx.AsyncClient, asked: list[Question]) -> None:
        self._client = client
        self._questions = asked
        self.expected: list[Choices] = []
        self.tally = Tally()
        self.latest_token: list[float] = [0.0] * len(asked)
        """When each user got its latest token; `time.monotonic` seconds."""
        self._enough = False

    async def in_peace(self) -> None:
        """Learn what the answers are."""
        self.expected = list(await asyncio.gather(*(ask(self._client, one) for one in self._questions)))
        again = await asyncio.gather(*(ask(self._client, one) for one in self._questions))
        if list(again) != self.expected:
            raise RuntimeError("the answers differ even in peace")

    async def run(self) -> None:
        """Ask until `stop`, and to the end of what has begun."""
        await asyncio.gather(*map(self._user, range(len(self._questions))))

    def stop(self) -> None:
        self._enough = True

    async def all_heard_since(self, moment: float) -> None:
        """Return once every user has got a token after `moment` (`time.monotonic`)."""
        while min(self.latest_token) <= moment:
            await asyncio.sleep(0.01)

    async def _user(self, number: int) -> None:
        def hear(tokens: int) -> None:
            if tokens:
                self.latest_token[number] = time.monotonic()

        question = self._questions[number]
        while not self._enough:
            try:
                found = await ask(self._client, question, hear)
            except Refused as error:
                self.tally.refused += 1
                self.tally.refusals.add(str(error)[:200])
                await asyncio.sleep(RETRY_SECONDS)
            except Lost as error:
                self.tally.accepted += 1
                self.tally.problem(f"{question}: {error}")
            else:
                self.tally.compare(question, found, self.expected[number])
