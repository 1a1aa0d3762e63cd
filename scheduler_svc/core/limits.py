"""What a worker can hold, and whether a request can ever fit."""

from dataclasses import dataclass
from math import inf

from scheduler_svc.core import rolling
from scheduler_svc.core.errors import ContextExceeded, RequestRefused
from scheduler_svc.core.request import Request

WATERMARK = 0.01
"""Part of the pool that admission leaves to the running sequences to grow into."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What a worker has to offer; see `WorkerReady` in worker.proto for the units."""

    num_blocks: int
    block_size: int
    max_slots: int
    max_model_len: int
    max_step_tokens: int
    vocab_size: int
    host_blocks: int = 0
    swap_block_us: float = 0.0
    token_us: float = 0.0
    window: int = 0
    can_draft: bool = False
    embedding_size: int = 0

    def __post_init__(self) -> None:
        for name in (
            "num_blocks",
            "block_size",
            "max_slots",
            "max_model_len",
            "max_step_tokens",
            "vocab_size",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        for name in ("host_blocks", "swap_block_us", "token_us", "window", "embedding_size"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more")

    @property
    def max_length(self) -> int:
        """Longest sequence, prompt and output: what the model can take and the pool can hold."""
        return self.max_length_of(1)

    @property
    def watermark(self) -> int:
        """Blocks that admission leaves to the running sequences to grow into."""
        return max(1, int(self.num_blocks * WATERMARK))

    def max_length_of(self, beams: int) -> int:
        """Longest that so many beams can get that all have to be held at once; 0 if they cannot be.

        With a window the pool need only hold that of each, and a position to go on with.
        """
        if beams > min(self.max_slots, self.max_step_tokens):
            return 0
        # One sequence alone has the whole pool.
        share = self.num_blocks if beams == 1 else (self.num_blocks - self.watermark) // beams
        if self.window and self._span(self.window + 1) <= share:
            return self.max_model_len
        return min(self.max_model_len, share * self.block_size)

    def can_hold(self, request: Request, limit: int) -> bool:
        """Whether sequences of the request may get so long here as its `length_limit` says."""
        positions = limit - 1 if request.pooling else limit
        return positions <= self.max_length_of(request.beam_width)

    @property
    def swap_tokens(self) -> float:
        """Tokens that could be computed while a block moves to the host or back; infinite if not known."""
        return self.swap_block_us / self.token_us if self.token_us else inf

    @property
    def swaps(self) -> bool:
        """There is host memory, and to move a block there and back takes less than to compute it again."""
        return self.host_blocks > 0 and 2 * self.swap_tokens < self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Blocks that so many positions need."""
        return -(-tokens // self.block_size)

    def blocks_at_once(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds at once: with a window, its own and a step's."""
        if not self.window:
            return self.blocks_for(tokens)
        most = min(self._span(self.window + self.max_step_tokens), self.num_blocks)
        return min(self.blocks_for(tokens), most)

    def outside_window(self, computed: int) -> int:
        """Blocks, from the head on, that a sequence with so many positions computed reads never again.

        Its last position may be computed again: a fork does that.
        """
        return max(0, computed - self.window) // self.block_size if self.window else 0

    def _span(self, positions: int) -> int:
        """Blocks that so many positions touch, wherever they begin."""
        return (positions + self.block_size - 2) // self.block_size + 1


def length_limit(request: Request, limits: WorkerLimits) -> int:
    """How long a sequence of the request may get, prompt included; one that rolls, how long its context may.

    A text to be embedded gets one longer than it is, as if a token came after it; that has no position.
    Raises `RequestRefused` if it can never fit: then nothing that ends or is preempted would help.
    """
    prompt, longest = len(request.prompt), limits.max_length_of(request.beam_width)
    if request.beams:
        _check_width(request.beams.width, len(request.stop_token_ids), longest, limits)
    if request.pooling:
        _check_embedding(request, longest, limits)
    elif prompt >= longest:
        raise ContextExceeded("prompt", longest, f"the prompt has {prompt}, and one is to be generated")
    if request.rolling and request.beams:
        raise RequestRefused("rolling_context", "a beam search ends with the context")
    if request.rolling and longest < rolling.SHORTEST:
        raise RequestRefused("rolling_context", f"a context of {longest} tokens is too short to roll")
    if prompt + request.max_tokens > longest and not (request.rolling or request.cut_to_fit):
        asked = f"the prompt has {prompt}, and {request.max_tokens} more may be generated"
        raise ContextExceeded("max_tokens", longest, asked)
    for tokens in (request.prompt, *(so_far.tokens for so_far in request.resumed)):
        if len(tokens) and not (min(tokens) >= 0 and max(tokens) < limits.vocab_size):
            raise RequestRefused("prompt", f"token ids must be in [0, {limits.vocab_size})")
    for so_far in request.resumed:
        if prompt + len(so_far.tokens) > longest and not request.rolling:
            raise RequestRefused(
                "resumed", f"sequence {so_far.index} is longer than the {longest} tokens that fit"
            )
    if request.pooling:
        return prompt + 1
    return min(prompt + request.max_tokens, longest) if request.max_tokens else longest


def _check_embedding(request: Request, longest: int, limits: WorkerLimits) -> None:
    """Raise `RequestRefused` if a text cannot be embedded, or not in so many numbers."""
    if len(request.prompt) > longest:
        raise ContextExceeded("prompt", longest, f"the text has {len(request.prompt)}")
    if request.dimensions > limits.embedding_size:
        size = limits.embedding_size
        raise RequestRefused(
            "dimensions", f"the model's embeddings have {size} numbers, not {request.dimensions}"
        )


def _check_width(width: int, stop_tokens: int, longest: int, limits: WorkerLimits) -> None:
    """Raise `RequestRefused` if a beam search cannot be so wide."""
    if width + stop_tokens > limits.vocab_size:
        raise RequestRefused("beam_width", f"{width} beams and {stop_tokens} tokens that end them: too many")
    if not longest:
        raise RequestRefused("beam_width", f"{width} beams are more than can run at once")
