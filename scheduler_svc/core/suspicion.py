"""Whether a request is the reason why workers are lost, or only was there.

A request is a suspect if it had a row in a step that its worker had not answered when it was lost. A suspect
goes on alone: on a worker where no other request has a row meanwhile. It is cleared when it has computed more
than it had in flight at the loss. A worker that is lost before that is lost because of it, or by chance:

    in flight when a worker was lost           p ─── q
    runs alone                     0 ────────────────── cleared
    runs alone, and lost again                p ─── q       once more at one place
    runs alone, and lost again        p ─── q               elsewhere: the count begins anew

So a request is ended only after several workers in a row were lost at one place of its text, each while it
ran alone. What was in flight is computed again as part of the prompt, which says nothing about the steps that
follow a prompt. So the place has to be passed by a position, and the one token that a prompt gives is no
progress: with a second one the count begins anew.

A step that raises an error does so again when it is computed again. So a suspect whose step raises while it
runs alone is ended at once.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

MAX_DEATHS = 3
"""Workers lost in a row at one place of a request that ran alone, after which it is ended."""

Span = tuple[int, int]
"""Positions of a sequence's whole text: the first, and the one behind the last."""


class Loss(Enum):
    """Why a worker is lost."""

    DEATH = "death"
    """It died, or its answers were wrong: the requests in flight are suspects."""
    RAISED = "raised"
    """Its code raised an error in a step, and it lives: the requests in flight are suspects."""
    OUTSIDE = "outside"
    """It was stopped in order or killed from outside: nobody is a suspect."""


class Suspicion:
    """Of one request: where a worker was lost, and how many were while it ran alone."""

    __slots__ = ("deaths", "spans")

    def __init__(self, spans: Mapping[int, Span], deaths: int = 0) -> None:
        self.spans = spans
        """What was in flight, by the sequence's index."""
        self.deaths = deaths
        """Workers lost in a row at this place while the request ran alone."""

    def refuted_by(self, reached: Sequence[float]) -> bool:
        """Whether the request has passed the place.

        `reached`: number of positions that each of its sequences has computed, infinite for one that ended.
        """
        return all(reached[index] > end for index, (_, end) in self.spans.items())

    def after_death(self, spans: Mapping[int, Span], gained: int) -> "Suspicion":
        """The suspicion once another worker was lost while the request ran alone on it.

        `gained`: most tokens that one of its sequences gained there. One token moves the place on by one.
        """
        again = gained <= 1 and any(
            first < self.spans[index][1] + gained and end > self.spans[index][0]
            for index, (first, end) in spans.items()
            if index in self.spans
        )
        return Suspicion(spans, self.deaths + 1 if again else 1)
