"""How much of prompts a step may compute beside answers, which all wait for their next token until it ends.

    step with prompts alone      as many tokens as a step may have at most
    step with answers, too       as many as take some 150 ms, and a few at least

On a GPU that is as many as ever. A CPU may take seconds for a full step of a large model, and every answer
would stand still for as long; in shorter ones prompts lose little, because their products run at nearly the
same rate from some tens of tokens on. How long a token takes is learned from the steps before.
"""

SHARE_US = 150_000
"""Microseconds that a step with answers should take: people read some six or seven tokens a second."""

LEAST = 64
"""Tokens of prompts; with fewer the weights would be read for too little."""

LEARNING = 0.25
"""Part of what is known that the newest step makes up."""


class Pace:
    """Of one worker."""

    def __init__(self) -> None:
        self._token_us = 0.0

    def learn(self, tokens: int, duration_us: int) -> None:
        """A step with so many tokens of prompts took so long. One with few would tell what weights cost."""
        if tokens >= LEAST and duration_us > 0:
            found = duration_us / tokens
            self._token_us += LEARNING * (found - self._token_us) if self._token_us else found

    def beside_answers(self, budget: int) -> int:
        """Of `budget` tokens those that prompts may have."""
        if not self._token_us:
            return budget
        return min(budget, max(LEAST, int(SHARE_US / self._token_us)))
