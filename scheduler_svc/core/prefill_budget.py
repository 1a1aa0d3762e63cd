"""How many prompt tokens a step may compute beside decodes, which all wait for its end.

    step with prompts alone      as many tokens as a step may have at most
    step with decodes, too       as many as fit into the step's time

A GPU computes all of a step's tokens in that time, so nothing changes there. A CPU may take seconds for a
full step of a large model, and every answer would stand still for as long. Prompts lose little in shorter
steps, as long as reading the weights is a small part of each. How long decodes and prompt tokens take is
learned from earlier steps.
"""

from collections.abc import Sequence

STEP_SECONDS = 0.15
"""What a step with decodes should take, if nobody says: people read six or seven tokens a second."""
DECODES = 4
"""Where no time is set, a step may take this many times as long as one that only decodes. If it were less, a
large model on a CPU would read all of its weights for a few tokens of prompts. With 1.1 billion weights and
32 users, three gave a tenth fewer tokens a second than four, and six no more."""

USUAL = 16
"""Tokens of a prompt that take as long as a step that decodes, until the worker's own steps have been timed.
It was so with Qwen 3.5 of 0.8 billion weights on two cores."""
LEARNING = 0.25
"""Weight of the newest step in what is learned."""


class PrefillBudget:
    """Prompt tokens that a step of one worker may have beside decodes."""

    def __init__(self, step_seconds: float | None = None) -> None:
        """`step_seconds`: time that a step with decodes should take; None: `STEP_SECONDS`, or the time of
        `DECODES` steps that only decode, if that is more. Prompts have half of the step at least."""
        self._step_us = 1e6 * (step_seconds or STEP_SECONDS)
        self._least = 2 if step_seconds else DECODES
        """A step may take this many times as long as one that only decodes."""
        self._decodes_us = 0.0
        """Running mean of steps that only decode."""
        self._prompts_us = 0.0
        """Time that prompts have taken in recent steps; older steps count less."""
        self._tokens = 0.0
        """Tokens of prompts that were computed in that time."""

    def learn(self, counts: Sequence[int], samples: Sequence[int], duration_us: int) -> None:
        """A step with these tokens and samples of its rows took `duration_us` microseconds; 0: not known."""
        if duration_us <= 0:
            return
        computed, tokens = sum(counts), 0
        if computed > len(counts):
            # A row that decodes samples as many tokens as it computes, with drafts or without.
            tokens = sum(count for count, sampled in zip(counts, samples, strict=True) if count > sampled)
        if tokens:
            taken = self._part_of(tokens, duration_us) if tokens < computed else duration_us
            self._prompts_us = (1 - LEARNING) * self._prompts_us + taken
            self._tokens = (1 - LEARNING) * self._tokens + tokens
        elif self._decodes_us:
            self._decodes_us += LEARNING * (duration_us - self._decodes_us)
        else:
            self._decodes_us = duration_us

    def beside_decodes(self, budget: int) -> int:
        """How many of `budget` tokens prompts may have in a step with decodes; one at least."""
        if not self._prompts_us:
            return budget
        room_us = max(self._step_us, self._least * self._decodes_us) - self._decodes_us
        return int(min(budget, max(1.0, room_us * self._tokens / self._prompts_us)))

    def steps_for(self, tokens: int) -> float:
        """How many steps that only decode take as long as `tokens` of a prompt."""
        if not (self._decodes_us and self._prompts_us):
            return tokens / USUAL
        return tokens * self._prompts_us / (self._tokens * self._decodes_us)

    def _part_of(self, tokens: int, duration_us: int) -> float:
        """Time that `tokens` of a prompt took in a step with decodes."""
        if duration_us > self._decodes_us:
            return duration_us - self._decodes_us
        # It took less than one that only decodes: prompts took as long as usual, but not all of the step.
        part = duration_us * tokens / (tokens + USUAL)
        if self._tokens:
            part = min(part, tokens * self._prompts_us / self._tokens)
        if duration_us < (1 - LEARNING) * self._decodes_us:  # that was long ago
            self._decodes_us = duration_us - part
        return part
