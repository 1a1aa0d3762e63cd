"""What a worker can hold, and whether a request can ever fit."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from scheduler_svc.core import rolling
from scheduler_svc.core.alternatives import NUMBERS
from scheduler_svc.core.errors import ContextExceeded, RequestRefused
from scheduler_svc.core.request import Pooling, Request

MAX_BLOCKS = 2**24
"""Most blocks of a worker on its device, and most on its host: the scheduler keeps books of each."""
MAX_SLOTS = 2**16
"""Most slots of a worker."""
_BOUNDS = {
    "num_blocks": (1, MAX_BLOCKS),
    "host_blocks": (0, MAX_BLOCKS),
    "max_slots": (1, MAX_SLOTS),
    **dict.fromkeys(("block_size", "max_model_len", "max_step_tokens", "vocab_size"), (1, inf)),
    **dict.fromkeys(("swap_block_us", "token_us", "window", "embedding_size", "num_labels"), (0, inf)),
}
"""Least and most of a worker's numbers."""
WATERMARK = 0.01
"""Share of the pool that admission leaves free, for running sequences to grow into."""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits of a worker; see `WorkerReady` in worker.proto for the units."""

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
    fingerprint: str = ""
    num_labels: int = 0
    bidirectional: bool = False
    recurrent: bool = False
    adapters: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Fingerprints of answers with each LoRA adapter, by its name."""
    images: bool = False
    whole_images: bool = False
    headless: bool = False

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}")
            if getattr(self, name) > most:
                raise ValueError(f"{name} must be at most {most}")
        if "" in self.adapters:
            raise ValueError("an adapter has no name")
        if self.bidirectional and min(self.block_size, self.max_step_tokens) < self.max_model_len:
            raise ValueError("an encoder's longest text must be one block and fit into one step")

    @property
    def max_length(self) -> int:
        """Tokens, prompt and output, of the longest sequence that model and pool allow."""
        return self.max_length_of(1)

    @property
    def watermark(self) -> int:
        """Blocks that admission leaves free, for running sequences to grow into."""
        return max(1, int(self.num_blocks * WATERMARK))

    def max_length_of(self, beams: int) -> int:
        """Tokens that each of `beams` beams can have if all are held at once; 0 if that many cannot be held.

        With a window the pool need only hold the window of each, and one position more.
        """
        if beams > min(self.max_slots, self.max_step_tokens):
            return 0
        # One sequence alone has the whole pool.
        share = self.num_blocks if beams == 1 else (self.num_blocks - self.watermark) // beams
        if self.window and self._span(self.window + 1) <= share:
            return self.max_model_len
        return min(self.max_model_len, share * self.block_size)

    def can_hold(self, request: Request, limit: int, fingerprint: str = "") -> bool:
        """Whether sequences of the request may have `limit` tokens here, see `length_limit`.

        `fingerprint`: see `goes_on`.
        """
        if not self.goes_on(request.adapter, fingerprint, bool(request.images)):
            return False
        if not self.has_room_for_images(request):
            return False
        positions = limit - 1 if request.pooling else limit
        return positions <= self.max_length_of(request.beam_width)

    def has_room_for_images(self, request: Request) -> bool:
        """Whether a step can compute each of the request's images as a whole, if it must."""
        if not (self.whole_images and request.images):
            return True
        largest = largest_image(request)
        # With a window the pool may be smaller than the prompt: it must hold the window and the image.
        held = min(self._span(self.window + largest), self.blocks_for(len(request.prompt)))
        return largest <= self.max_step_tokens and (not self.window or held <= self.num_blocks)

    def has(self, adapter: str) -> bool:
        """Whether this worker has a LoRA adapter; empty: the model alone."""
        return not adapter or adapter in self.adapters

    def fingerprint_of(self, adapter: str) -> str:
        """What answers with an adapter that it has depend on besides the request; empty: the model alone."""
        return self.adapters[adapter] if adapter else self.fingerprint

    def goes_on(self, adapter: str, fingerprint: str, images: bool = False) -> bool:
        """Whether this worker computes with an adapter, and goes on with an answer of that fingerprint.

        `fingerprint`: of the answer, if a worker has begun it; empty if none has. `images`: the prompt has
        some, which not every worker takes.
        """
        sees = self.images or not images
        return sees and self.has(adapter) and fingerprint in ("", self.fingerprint_of(adapter))

    @property
    def swap_tokens(self) -> float:
        """Tokens that could be computed while one block moves to the host or back; infinite if not known."""
        return self.swap_block_us / self.token_us if self.token_us else inf

    @property
    def swaps(self) -> bool:
        """Whether there is host memory, and moving a block there and back is faster than computing it."""
        return self.host_blocks > 0 and 2 * self.swap_tokens < self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` positions need."""
        return -(-tokens // self.block_size)

    def blocks_at_once(self, tokens: int) -> int:
        """Blocks that a sequence of `tokens` tokens holds at once: with a window, of window and one step."""
        if not self.window:
            return self.blocks_for(tokens)
        most = min(self._span(self.window + self.max_step_tokens), self.num_blocks)
        return min(self.blocks_for(tokens), most)

    def outside_window(self, computed: int) -> int:
        """Blocks, from the head on, that a sequence with `computed` positions never reads again.

        Its last position may be computed again: a fork does that.
        """
        return max(0, computed - self.window) // self.block_size if self.window else 0

    def _span(self, positions: int) -> int:
        """Blocks that `positions` positions touch at most, wherever they begin."""
        return (positions + self.block_size - 2) // self.block_size + 1


def largest_image(request: Request) -> int:
    """Tokens of the request's largest image; 0 without any."""
    return max((image.tokens for image in request.images), default=0)


def length_limit(request: Request, limits: WorkerLimits) -> int:
    """Tokens that a sequence of the request may have, prompt included; if it rolls, tokens of its context.

    For a text to be embedded this is one more than the text has, as if a token came after it, which gets no
    position. What a larger worker has begun may have one more than it has: it waits for such a worker. Raises
    `RequestRefused` if the request can never fit, not even alone.
    """
    prompt, longest = len(request.prompt), limits.max_length_of(request.beam_width)
    unfinished = (so_far for so_far in request.resumed if not (so_far.finished or request.rolling))
    known = max((len(so_far.tokens) for so_far in unfinished), default=0)
    _check_purpose(request, limits)
    if limits.whole_images and request.images:
        _check_images(request, limits)
    if request.beams:
        _check_width(request.beams.width, len(request.stop_token_ids), longest, limits)
    if request.pooling:
        _check_embedding(request, longest, limits)
    elif prompt >= longest and not known:
        raise ContextExceeded("prompt", longest, prompt + 1, ", with the first of the answer")
    if request.rolling and request.beams:
        raise RequestRefused("rolling_context", "a beam search ends with the context")
    if request.rolling and longest < rolling.SHORTEST:
        raise RequestRefused("rolling_context", f"a context of {longest} tokens is too short to roll")
    for tokens in (request.prompt, request.predicted, *(so_far.tokens for so_far in request.resumed)):
        if tokens is None:
            continue
        # As unsigned numbers negative ones are large, too: one look at each token of a long prompt.
        size = limits.vocab_size
        if max(array("I", tokens.tobytes()), default=0) >= size:
            wrong = next(token for token in tokens if not 0 <= token < size)
            # A text, too, may spell one: a tokenizer may have more tokens than the model has rows.
            raise RequestRefused("prompt", f"token id {wrong} is not one of the model's, 0 to {size - 1}")
    if known and prompt + known > longest:
        return prompt + min(known + 1, request.max_tokens or known + 1)
    if request.pooling:
        return prompt + 1
    return min(prompt + request.max_tokens, longest) if request.max_tokens else longest


def _check_purpose(request: Request, limits: WorkerLimits) -> None:
    """Raise `RequestRefused` if the model is not for what is asked.

    A classifier gives labels and nothing else. An encoder generates nothing, nor does a model without a head.
    """
    classify = request.pooling is Pooling.CLASSIFY
    if limits.num_labels and not classify:
        what = "embeds" if request.pooling else "generates"
        raise RequestRefused("model", f"the model classifies texts, and {what} none")
    if classify and not limits.num_labels:
        raise RequestRefused("model", "the model has no classification head")
    if (limits.bidirectional or limits.headless) and not request.pooling:
        raise RequestRefused("model", "the model embeds texts, and generates none")
    if request.pooling is Pooling.CLS and not limits.bidirectional:
        raise RequestRefused("pooling", "the first token of the model sees no other token")


def _check_embedding(request: Request, longest: int, limits: WorkerLimits) -> None:
    """Raise `RequestRefused` if the text is too long, or too long for vectors of all its tokens, or the
    embedding has fewer dimensions than asked."""
    if len(request.prompt) > longest:
        raise ContextExceeded("prompt", longest, len(request.prompt))
    most = NUMBERS // max(1, limits.embedding_size)
    if request.pooling is Pooling.ALL and len(request.prompt) > most:
        vectors = f"vectors of {limits.embedding_size} numbers for each of its {len(request.prompt)} tokens"
        raise RequestRefused("prompt", f"a text with {vectors} is too long: it may have {most} tokens")
    if request.dimensions > limits.embedding_size:
        size = limits.embedding_size
        raise RequestRefused(
            "dimensions", f"the model's embeddings have {size} dimensions, not {request.dimensions}"
        )


def _check_images(request: Request, limits: WorkerLimits) -> None:
    """Raise `RequestRefused` for an image that no step can compute as a whole."""
    if not limits.has_room_for_images(request):
        largest = largest_image(request)
        what = f"an image has {largest} tokens, which is more than a step can compute as a whole"
        raise RequestRefused("messages", what)
    if request.scores_prompt:
        what = "log probabilities of prompts with images are not there for this model"
        raise RequestRefused("prompt_logprobs", what)


def _check_width(width: int, stop_tokens: int, longest: int, limits: WorkerLimits) -> None:
    """Raise `RequestRefused` if a beam search cannot have `width` beams."""
    if width + stop_tokens > limits.vocab_size:
        asked = f"{width} beams and {stop_tokens} stop tokens"
        raise RequestRefused("beam_width", f"{asked} are more than the vocabulary of {limits.vocab_size}")
    if not longest:
        raise RequestRefused("beam_width", f"{width} beams are more than can run at once")
