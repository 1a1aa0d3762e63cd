"""What a load asks: prompts and output lengths, drawn from a seed or read from a trace."""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Question:
    """One request of a load."""

    prompt: list[int] | str
    """Token ids, or text."""
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    """A distribution of conversations. The same seed draws the same ones."""

    prompt_lengths: tuple[int, ...] = (32, 128, 512)
    """Tokens; taken in turn, so that every run has the same mix."""
    output_lengths: tuple[int, int] = (64, 64)
    """Least and most tokens of an answer, drawn evenly between them."""
    shared_prefix: int = 0
    """Tokens that all conversations begin with, on top of their prompt's length."""
    turns: int = 1
    """Questions of a conversation. The prompt of each is the conversation before it, and more."""
    vocabulary: tuple[int, int] = (300, 4000)
    """Token ids are drawn from this range (first, past the last): ordinary tokens of most models."""

    def conversations(self, count: int, seed: int) -> list[list[Question]]:
        """`count` conversations; answers within them are stood in for by drawn tokens."""
        chance = random.Random(seed)
        prefix = self._tokens(chance, self.shared_prefix)
        drawn = []
        for number in range(count):
            length = self.prompt_lengths[number % len(self.prompt_lengths)]
            conversation = list(prefix)
            questions = []
            for _ in range(self.turns):
                conversation += self._tokens(chance, length)
                questions.append(Question(list(conversation), chance.randint(*self.output_lengths)))
                conversation += self._tokens(chance, questions[-1].max_tokens)
            drawn.append(questions)
        return drawn

    def _tokens(self, chance: random.Random, count: int) -> list[int]:
        return [chance.randrange(*self.vocabulary) for _ in range(count)]


def from_trace(path: Path) -> tuple[list[list[Question]], list[float]]:
    """Questions of a JSON-lines file, and when each is asked (seconds from the start; 0 if it does not say).

    A line is {"prompt": text or token ids, "max_tokens": number, "at": seconds}. Raises `ValueError`
    that names the line.
    """
    questions, times = [], []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            fields = json.loads(line)
            questions.append([Question(fields["prompt"], int(fields["max_tokens"]))])
            times.append(float(fields.get("at", 0)))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number}: {error!r}") from None
    return questions, times


def arrivals(count: int, rate: float, seed: int) -> Sequence[float]:
    """Seconds from the start at which `count` conversations begin: a Poisson process of `rate` a second."""
    chance = random.Random(seed)
    at, times = 0.0, []
    for _ in range(count):
        at += chance.expovariate(rate)
        times.append(at)
    return times
