"""What drafts cost a worker: how many of them must hold for a step to pay.

A step of B decodes takes T. With D drafts beside them it takes T', and gives the tokens of the drafts that
held, too. The worker's rate rises if these are more than the extra time is worth in tokens of plain steps:

    held > B * (T' / T - 1)

Where memory is the limit, a step with drafts takes hardly longer, and one that holds pays for many. Where
arithmetic is, each draft costs nearly what a token costs. Both times are learned from the steps themselves.
"""

from collections.abc import Sequence

LEARNING = 0.25
"""Weight of the newest step in the running means."""


class DraftCost:
    """Of the drafts of one worker, by the number of sequences that decode beside each other."""

    def __init__(self, most: int) -> None:
        """`most`: sequences that may decode in a step with drafts."""
        self._plain_us = [0.0] * (most + 1)
        """Microseconds of a step without drafts; 0: not known."""
        self._each = [0.0] * (most + 1)
        """Drafts that must hold, for each that is tried."""

    def learn(self, counts: Sequence[int], samples: Sequence[int], duration_us: int) -> None:
        """A step with these tokens and samples of its rows took `duration_us` microseconds; 0: not known.

        Steps that compute prompts say nothing: each row of them must sample as many tokens as it computes.
        """
        decodes = len(counts)
        if not 0 < decodes < len(self._plain_us) or duration_us <= 0 or list(counts) != list(samples):
            return
        drafted, plain_us = sum(counts) - decodes, self._plain_us[decodes]
        if not drafted:
            self._plain_us[decodes] = _mean(plain_us, duration_us) if plain_us else duration_us
        elif plain_us:
            each = decodes * (duration_us / plain_us - 1) / drafted
            self._each[decodes] = _mean(self._each[decodes], max(0.0, each))

    def due(self, samples: Sequence[int], drafted: int) -> float:
        """The least number of a sequence's `drafted` drafts that must hold for them to have paid.

        `samples`: how many tokens each row of the step samples. Beside a row without drafts it is one more:
        a sequence with drafts in flight sits out the step that is planned for the others meanwhile.
        """
        each = self._each[len(samples)] if len(samples) < len(self._each) else 1.0
        return drafted * each + (1 in samples)


def _mean(before: float, newest: float) -> float:
    return before + LEARNING * (newest - before)
