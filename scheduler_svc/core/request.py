"""Requests to the scheduler."""

from array import array
from dataclasses import dataclass, field
from enum import IntEnum
from math import inf

from scheduler_svc.core.beam_search import BeamSearch
from scheduler_svc.core.images import Image


class Finish(IntEnum):
    """Why a sequence ended; the numbers are those of `quire.FinishReason`."""

    NOT_FINISHED = 0
    STOP = 1
    LENGTH = 2


class Pooling(IntEnum):
    """How the tokens of a text become a vector, or one each; the numbers are those of `quire.Pooling`."""

    NO_POOLING = 0
    MEAN = 1
    LAST = 2
    CLASSIFY = 3
    CLS = 4
    ALL = 5


@dataclass(frozen=True, slots=True)
class SoFar:
    """What one sequence of an interrupted request has delivered."""

    index: int
    tokens: "array[int]"
    finished: bool


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how to continue it, or a text to be embedded or classified.

    Token arrays have typecode `i`.
    """

    request_id: str
    prompt: "array[int]"
    max_tokens: int = 0
    """Tokens of each answer at most; 0: up to the end of the context, or without end if it rolls."""
    stop_token_ids: frozenset[int] = frozenset()
    """Each of them ends a sequence."""
    n: int = 1
    """Number of answers."""
    beams: BeamSearch | None = None
    """If given, the answers are the `n` best of this beam search instead of `n` samples."""
    salt: str = ""
    """Requests share cached prefixes only with requests of the same salt."""
    adapter: str = ""
    """Name of the LoRA adapter that computes it, on workers that have it; empty: the model alone."""
    tenant: str = ""
    """Who asks. Tenants share each worker evenly; see `shares.py`."""
    user: str = ""
    """Name of the tenant's user who asks, or empty. Users share evenly what their tenant has."""
    priority: int = 0
    """Lower comes first, with the policy `priority`."""
    deadline: float = inf
    """When the answer is due, in seconds on a clock that all requests of a process share."""
    sampling: object = None
    """Sampling parameters, which the scheduler hands on unread."""
    grammar: bytes = b""
    """The grammar that every answer follows, a packed message that is handed on unread; empty: none."""
    plan_bytes: int = 0
    """Size of the grammar, the rules and the images in a plan; 0 without any."""
    traceparent: str = ""
    """W3C trace context of the request's span; empty: it is not traced."""
    rolling: bool = False
    """Go on past the model's context; see `rolling.py`."""
    pooling: Pooling = Pooling.NO_POOLING
    """If not `NO_POOLING`, the prompt becomes a vector in this way, and nothing is generated."""
    scores_prompt: bool = False
    """Whether log probabilities of the prompt's tokens are wanted; see `capabilities/prompt_scores.py`."""
    alternatives: int = 0
    """Alternatives that are wanted with each token, if more than `FEW`; otherwise 0; see
    `alternatives.py`."""
    prompt_alternatives: int = 0
    """The same of the prompt's tokens."""
    scored_tokens: int = 0
    """Tokens of the prompt, from the first one on, whose log probabilities were delivered before."""
    second_segment: int = 0
    """Index of the prompt's first token of the second text of a pair; 0: there is none."""
    dimensions: int = 0
    """Dimensions that the embedding is to have; 0: all of the model."""
    predicted: "array[int] | None" = None
    """Tokens that the answer is expected to be like, which are tried as drafts; None: nothing is expected."""
    fingerprint: str = ""
    """Fingerprint of the worker that computed what is `resumed`; empty: any worker may go on."""
    images: tuple[Image, ...] = ()
    """Images of the prompt, in order; they do not overlap. Only workers that take images get the request."""
    resumed: tuple[SoFar, ...] = field(default=())
    """What the sequences delivered before the request was interrupted."""

    @property
    def beam_width(self) -> int:
        """Number of beams, which must be held at once; 1 without beam search."""
        return 1 if self.beams is None else self.beams.width

    @property
    def candidates(self) -> int:
        """Number of most likely tokens that the worker reports of each beam; 0 without beam search."""
        return 0 if self.beams is None else self.beams.width + len(self.stop_token_ids)
