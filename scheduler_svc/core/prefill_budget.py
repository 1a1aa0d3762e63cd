"""How many prompt tokens a step may compute beside decodes, which all wait for its end.

    step with prompts alone      as many tokens as a step may have at most
    step with decodes, too       as many as take about 150 ms, and 64 at least

A GPU computes all of a step's tokens in that time, so nothing changes there. A CPU may take seconds for a
full step of a large model, and every answer would stand still for as long. Prompts lose little in shorter
steps, because their matrix products run at nearly the same rate from some tens of tokens on. How long a token
takes is learned from earlier steps.
"""

SHARE_US = 150_000
"""Microseconds that a step with decodes should take: people read six or seven tokens a second."""

LEAST = 64
"""Prompt tokens of a step at least; with fewer, reading the weights would cost more than computing."""

LEARNING = 0.25
"""Weight of the newest step in the running mean of a token's time."""


class PrefillBudget:
    """Prompt tokens that a step of one worker may have beside decodes."""

    def __init__(self) -> None:
        self._token_us = 0.0

    def learn(self, tokens: int, duration_us: int) -> None:
        """A step with `tokens` prompt tokens took `duration_us` microseconds; 0: not known.

        A step with fewer than `LEAST` says nothing: it shows what reading the weights costs.
        """
        if tokens >= LEAST and duration_us > 0:
            found = duration_us / tokens
            self._token_us += LEARNING * (found - self._token_us) if self._token_us else found

    def beside_decodes(self, budget: int) -> int:
        """How many of `budget` tokens prompts may have in a step with decodes."""
        if not self._token_us:
            return budget
        return min(budget, max(LEAST, int(SHARE_US / self._token_us)))
