"""What is asked of the scheduler."""

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from scheduler_svc.core.beam_search import BeamSearch


class Finish(IntEnum):
    """Why a sequence ended; the numbers are those of `quire.FinishReason`."""

    NOT_FINISHED = 0
    STOP = 1
    LENGTH = 2


class Pooling(IntEnum):
    """How the tokens of a text become one vector; the numbers are those of `quire.Pooling`."""

    NO_POOLING = 0
    MEAN = 1
    LAST = 2


@dataclass(frozen=True, slots=True)
class SoFar:
    """What one sequence of an interrupted request has delivered."""

    index: int
    tokens: "array[int]"
    finished: bool


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to continue it. Token arrays have typecode `i`."""

    request_id: str
    prompt: "array[int]"
    max_tokens: int = 0
    """Tokens to generate at most per sequence; 0 = up to the end of the context, if it rolls without end."""
    cut_to_fit: bool = False
    """Nobody asked for so many: what does not fit into the context is left off."""
    stop_token_ids: frozenset[int] = frozenset()
    n: int = 1
    beams: BeamSearch | None = None
    """The answers are the `n` best of a beam search instead of `n` samples."""
    salt: str = ""
    tenant: str = ""
    """Who asks: shares of the work are counted by tenant."""
    priority: int = 0
    """Lower is earlier."""
    deadline: float = inf
    """When the answer is due, in seconds on a clock that all requests of a process share."""
    sampling: object = None
    """Handed on to the worker unread."""
    traceparent: str = ""
    rolling: bool = False
    """Go on past the model's context; see `rolling.py`."""
    pooling: Pooling = Pooling.NO_POOLING
    """The prompt is embedded so, and nothing is generated."""
    dimensions: int = 0
    """Numbers of its embedding that are wanted; 0: all."""
    resumed: tuple[SoFar, ...] = field(default=())

    @property
    def takes_prefixes(self) -> bool:
        """What was computed of its prompt before need not be computed again: a mean is over all tokens."""
        return self.pooling is not Pooling.MEAN

    @property
    def beam_width(self) -> int:
        """Sequences that have to be held at once, if they are beams; 1 if there are none."""
        return 1 if self.beams is None else self.beams.width

    @property
    def candidates(self) -> int:
        """Most likely tokens that a beam of the request needs to know; 0 if it has none."""
        return 0 if self.beams is None else self.beams.width + len(self.stop_token_ids)
