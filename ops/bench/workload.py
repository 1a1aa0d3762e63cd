"""What a load asks: prompts and output lengths, drawn from a seed."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Question:
    """One request of a load."""

    prompt: list[int]
    """Token ids."""
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    """A distribution of questions; `questions(seed)` draws the same ones for the same seed."""

    prompt_lengths: tuple[int, ...] = (32, 128, 512)
    """Tokens; taken in turn, so that every run has the same mix."""
    output_lengths: tuple[int, int] = (64, 64)
    """Least and most tokens of an answer, drawn evenly between them."""
    shared_prefix: int = 0
    """Tokens that all prompts begin with, within their lengths."""
    vocabulary: tuple[int, int] = (300, 4000)
    """Token ids are drawn from this range (first, past the last): ordinary tokens of most models."""

    def questions(self, count: int, seed: int) -> list[Question]:
        chance = random.Random(seed)
        first, last = self.vocabulary
        prefix = [chance.randrange(first, last) for _ in range(self.shared_prefix)]
        drawn = []
        for number in range(count):
            length = self.prompt_lengths[number % len(self.prompt_lengths)]
            own = [chance.randrange(first, last) for _ in range(max(1, length - len(prefix)))]
            drawn.append(
                Question(
                    (prefix + own)[-max(length, 1) :] if prefix else own, chance.randint(*self.output_lengths)
                )
            )
        return drawn
