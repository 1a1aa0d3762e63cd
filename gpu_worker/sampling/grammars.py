"""Grammars of the sequences in the slots: which tokens may come next.

Each slot with a grammar has a matcher, which has consumed the slot's output up to some position:

    slot      p p p p o o o o d d            p prompt, o output, d drafts of this step
    matcher           ─────▶│                consumed by steps before
    step                     ──▶ ● ● ●       consumed now; masks for the positions that are sampled

What it has to consume is read from the batch's tokens. So a sequence that comes back after a preemption, or
from another worker, needs nothing but its tokens. A draft is consumed on trial only, for the masks behind it.
A plan that was made ahead says nothing of grammars.

Grammars are compiled in a thread of low priority, beside the steps. Each is announced once that is over. The
scheduler lets no row sample before, so no step waits for the thread; one that came nevertheless would wait.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from llguidance import LLExecutor, LLMatcher
from llguidance.numpy import fill_next_token_bitmask_par, fill_next_token_bitmask_par_with_draft_tokens
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.arrays import Int32s
from gpu_worker.errors import PlanError
from gpu_worker.kernels.sampling import Allowed
from gpu_worker.machine.cores import granted
from gpu_worker.sampling.positions import SamplePositions
from gpu_worker.sampling.tokens_read import TokensRead, read_tokens
from ops.model_directory.grammars import (
    GrammarError,
    LimitError,
    Vocabulary,
    fault_of,
    lower_priority,
    rolls_back,
)
from proto.sampling_pb2 import Grammar
from proto.worker_pb2 import NewGrammar, NewSlot

THREADS = max(1, min(8, granted() // 2))
"""Of the masks of one step."""
MOST_FORCED = 64
"""Tokens of a run that is reported at most."""
SLOW_SECONDS = 0.005
"""Processor time for one token of an answer. Grammars take 10 to 500 microseconds. One whose texts can be
read in many ways takes more with each token, up to a second within `LIMITS`, and the whole batch waits."""
MOST_SLOW_SECONDS = 0.03
"""What the tokens of one answer may take beyond `SLOW_SECONDS` each, all together."""
TOO_SLOW = "it takes too much time for each token, as its texts can be read in many ways"

Followed = TypeVar("Followed")

Announce = Callable[[int], None]
"""Is called with the number of a grammar that has been compiled."""


def _nobody(number: int) -> None:
    """Nobody wants to know which grammars have been compiled."""


class _Compiled(NamedTuple):
    """A grammar at its beginning."""

    matcher: LLMatcher
    rolls_back: bool
    """Whether a matcher that has consumed tokens can take them back."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A grammar that slots may name."""

    end_tokens: frozenset[int]
    compiled: "Future[_Compiled]"


@dataclass(slots=True)
class _Matching:
    """The grammar of one slot."""

    grammar: _Held
    consumed: int
    """Position of the first token that the matcher has not consumed."""
    matcher: LLMatcher | None = None
    """None until the first mask is wanted."""
    ended: bool = False
    """An end token was sampled: rows that were planned ahead may sample anything."""
    at_limit: bool = False
    """The grammar cannot be followed any further. That is no fault of the worker's."""
    slow_seconds: float = 0.0
    """What its tokens took beyond `SLOW_SECONDS` each."""

    def end(self, error: GrammarError) -> str:
        """What to tell of a sequence that cannot go on."""
        self.at_limit = isinstance(error, LimitError)
        return f"the grammar: {error}"


class _Asked(NamedTuple):
    """A row that wants masks."""

    row: int
    matching: _Matching
    matcher: LLMatcher
    drafts: list[int]

    def on_trial(self, first: int) -> Iterator[tuple[LLMatcher, int]]:
        """A matcher for each mask, with the mask's number: `first`, and on. Copies consume the drafts.

        There is none behind a draft that does not follow the grammar or that ends it.
        """
        matcher = self.matcher
        yield matcher, first
        for number, draft in enumerate(self.drafts, first + 1):
            matcher = matcher.deep_copy()
            if draft in self.matching.grammar.end_tokens or not matcher.consume_token(draft):
                return
            yield matcher, number


@dataclass(slots=True)
class Masks:
    """What the grammars of a step say."""

    allowed: Allowed | None
    """None if no row has a mask."""
    faults: Mapping[int, str] = field(default_factory=dict)
    """What is wrong with sampling rows that cannot go on, by index."""


class Grammars:
    """The grammars of all slots. All calls are made by the engine thread."""

    def __init__(self, slots: int, vocab_size: int) -> None:
        self.used = np.zeros(slots, np.bool_)
        """[slots]: whether the slot's sequence has a grammar."""
        self.directory: Path | None = None
        """Where the model's tokenizer.json is. None: sequences with grammars fail."""
        self.masked_rows = 0
        """Rows so far that got a mask."""
        self.announce: Announce = _nobody
        """Is called, in any thread, with the number of each grammar that is added from now on, once it has
        been compiled or a fault was found in it."""
        self.limits_time = True
        """Whether a grammar that takes too much time is a fault here. Ranks would come to that at different
        tokens, so rank 0 decides, and tells the others."""
        self._vocab_size = vocab_size
        self._slots: dict[int, _Matching] = {}
        self._held: dict[int, _Held] = {}
        self._vocabularies: dict[tuple[int, ...], Vocabulary] = {}
        self._thread = ThreadPoolExecutor(1, "grammars", lower_priority)
        self._masks = LLExecutor(THREADS)
        """Made here and not by the engine thread, which may be bound to one core: threads inherit that. An
        executor of idle threads takes less than a millisecond to make, and no time afterwards."""
        self._counted = 0.0
        """Processor time of the engine thread, in seconds, before the grammar that is followed now."""
        self._are_slow = False
        """The masks of the last step took more than `SLOW_SECONDS`: each is timed."""

    def reset(self) -> None:
        """Forget all grammars."""
        self.announce = _nobody
        self.used[:] = False
        self._slots.clear()
        for held in self._held.values():
            held.compiled.cancel()
        self._held.clear()

    def add(self, new: Iterable[NewGrammar]) -> None:
        """Begin to compile grammars. Raises `PlanError` for a number that another grammar has."""
        for each in new:
            if not each.number or each.number in self._held:
                raise PlanError(f"new_grammars: number {each.number} is 0 or that of another grammar")
            compiled = self._thread.submit(self._compiled, each.grammar)
            self._held[each.number] = _Held(frozenset(each.grammar.end_tokens), compiled)
            compiled.add_done_callback(partial(_announce, self.announce, each.number))

    def drop(self, numbers: Iterable[int]) -> None:
        """Forget grammars. Raises `PlanError` for a number that no grammar has."""
        for number in numbers:
            if self._held.pop(number, None) is None:
                raise PlanError(f"dropped_grammars: no grammar has number {number}")

    def set(self, new: NewSlot) -> None:
        """Take over the grammar of a new sequence, in which `fault_in` has found nothing wrong."""
        self.used[new.slot] = new.grammar > 0
        if new.grammar:
            self._slots[new.slot] = _Matching(self._held[new.grammar], new.prompt_length)
        else:
            self._slots.pop(new.slot, None)

    def fault_in(self, new: NewSlot) -> str:
        """What is wrong with the grammar of a new sequence; empty if nothing is."""
        if not new.grammar:
            return ""
        if new.grammar not in self._held:
            return f"grammar {new.grammar}, which no plan has brought"
        if new.candidates or new.dropped_tokens or new.pooling:
            return "a grammar for a beam, an embedding or a text that has left tokens behind"
        return ""

    def prepare(self, end_tokens: Sequence[int]) -> None:
        """Read the vocabulary, before the first step: the first grammar then need not.

        The library takes some seconds for 262,144 tokens, in which no other thread of the process runs: steps
        would stop, and the lease would end. If the model takes no grammars, this is without effect.
        """
        with contextlib.suppress(GrammarError):
            self._vocabulary(token for token in end_tokens if token < self._vocab_size)
        self._thread.submit(lower_priority)  # begins here: a thread of the engine's is bound to its core

    def to_consume(self, samples: SamplePositions, tokens: Tensor) -> TokensRead | None:
        """Begin to read the tokens that the matchers have yet to consume; None if no row has a grammar.

        `tokens` [slots, max_model_len + 1]: the batch's, with this step's drafts.
        """
        used = self.used[samples.row_slots]
        if not used.any():
            return None
        rows = np.flatnonzero(used)
        begins = [self._slots[slot].consumed for slot in samples.row_slots[rows].tolist()]
        return read_tokens(samples, rows.tolist(), begins, tokens)

    def masks(self, read: TokensRead, samples: SamplePositions) -> Masks:
        """Consume what was read, and give the tokens that are allowed in each sampled position."""
        asked: list[_Asked] = []
        faults: dict[int, str] = {}
        self._counted = time.thread_time()
        slots = samples.row_slots[read.rows].tolist()
        drafts = (samples.counts[read.rows] - 1).tolist()
        for row, slot, drafted, tokens in zip(read.rows, slots, drafts, read.lists(), strict=True):
            matching, known = self._slots[slot], len(tokens) - drafted
            try:
                matcher = self._advanced(matching, tokens[:known])
            except GrammarError as error:
                faults[row] = matching.end(error)
                continue
            if not matching.ended:
                asked.append(_Asked(row, matching, matcher, tokens[known:]))
        if not asked:
            return Masks(None, faults)
        self.masked_rows += len(asked)
        rows = np.array([each.row for each in asked], np.intp)
        counts = samples.counts[rows]
        firsts = np.cumsum(counts) - counts
        bits = self._bits(asked, firsts)
        masks = np.full(len(samples.slots), -1, np.int32)
        numbers = np.arange(len(bits))
        masks[np.repeat(samples.firsts[rows] - firsts, counts) + numbers] = numbers
        possible = np.bitwise_or.reduce(bits, axis=1)[firsts].tolist()
        for each, first, some in zip(asked, firsts, possible, strict=True):
            if not some or each.matcher.is_error():
                faults[each.row] = each.matching.end(fault_of(each.matcher))
                masks[masks == first] = -1
            elif self.limits_time and each.matching.slow_seconds > MOST_SLOW_SECONDS:
                # The mask stays: other ranks know nothing of the fault yet, and sample the same token.
                faults[each.row] = each.matching.end(LimitError(TOO_SLOW))
        return Masks(Allowed(masks, bits), faults)

    def at_limit(self, slot: int) -> bool:
        """Whether the grammar of a slot, if it has one, was found to go no further."""
        return slot in self._slots and self._slots[slot].at_limit

    def forced(self, slots: Iterable[int], known: Int32s, tokens: Tensor) -> dict[int, tuple[int, list[int]]]:
        """By slot, the tokens that its grammar forces: their first position, and two of them at least.

        `known` [slots]: tokens of each slot. `tokens` [slots, max_model_len + 1]: the batch's. If these are
        in main memory, the tokens that were sampled just now are consumed before. Otherwise nothing waits for
        the device: what follows those tokens is told with the next step.
        """
        found = {}
        self._counted = time.thread_time()
        readable = None if tokens.is_cuda else tokens.numpy()
        for slot in slots:
            matching = self._slots.get(slot)
            if matching is None or matching.matcher is None or matching.ended:
                continue
            if readable is not None:
                with contextlib.suppress(GrammarError):  # the next mask will tell
                    self._advanced(matching, readable[slot, matching.consumed : known[slot]].tolist())
            forced = [] if matching.ended else matching.matcher.compute_ff_tokens()
            run = list(takewhile(lambda token: token < self._vocab_size, forced))
            if len(run) > 1:
                found[slot] = matching.consumed, run[:MOST_FORCED]
        return found

    def _bits(self, asked: Sequence[_Asked], firsts: NDArray[np.integer]) -> Int32s:
        """[masks, words]: the masks of rows, one for each draft and one more, from the number `firsts` on."""
        count = firsts[-1] + 1 + len(asked[-1].drafts)
        words = next(iter(self._vocabularies.values())).words  # that of each: it is the model's
        bits = np.full((count, words), -1, np.int32)
        numbered = list(zip(asked, firsts.tolist(), strict=True))
        began = time.perf_counter()
        if self._are_slow:
            for each in asked:
                self._timed(each.matching, each.matcher.compute_bitmask)  # which keeps it for the calls below
        plain: list[tuple[LLMatcher, int]] = []
        drafted: list[tuple[LLMatcher, int, list[int]]] = []
        for each, first in numbered:
            if each.drafts and each.matching.grammar.compiled.result().rolls_back:
                drafted.append((each.matcher, first, each.drafts))
            else:
                plain += each.on_trial(first)
        if plain:
            fill_next_token_bitmask_par(self._masks, plain, bits)
        if drafted:
            fill_next_token_bitmask_par_with_draft_tokens(self._masks, drafted, bits)
        self._are_slow = time.perf_counter() - began > SLOW_SECONDS
        # The tokenizer may have tokens without a row of logits.
        word, bit = divmod(self._vocab_size, 32)
        bits[:, word : word + 1] &= (1 << bit) - 1
        bits[:, word + 1 :] = 0
        return bits

    def _advanced(self, matching: _Matching, known: list[int]) -> LLMatcher:
        """The matcher of a slot after `known` more tokens. Raises `GrammarError`."""
        if matching.matcher is None:
            matching.matcher = matching.grammar.compiled.result().matcher.deep_copy()
        matching.consumed += len(known)
        if known and not matching.ended:
            text = list(takewhile(lambda token: token not in matching.grammar.end_tokens, known))
            consume = partial(matching.matcher.consume_tokens, text)
            if text and not self._timed(matching, consume, len(text)):
                raise fault_of(matching.matcher)
            matching.ended = len(text) < len(known)
        return matching.matcher

    def _timed(self, matching: _Matching, follow: Callable[[], Followed], tokens: int = 1) -> Followed:
        """Do this for a number of tokens, and note the processor time that it takes beyond `SLOW_SECONDS`.

        The system is asked for that only after a long time has passed: it takes longer to say than most
        grammars to follow, and the thread may have had to wait.
        """
        began, slow = time.perf_counter(), tokens * SLOW_SECONDS
        found = follow()
        passed = time.perf_counter() - began
        if passed > slow:
            counted, self._counted = self._counted, time.thread_time()
            matching.slow_seconds += max(0.0, min(passed, self._counted - counted) - slow)
        return found

    def _compiled(self, grammar: Grammar) -> _Compiled:
        if not grammar.end_tokens or max(grammar.end_tokens) >= self._vocab_size:
            raise GrammarError("end_tokens: none, or not in the vocabulary")
        vocabulary = self._vocabulary(grammar.end_tokens)
        matcher = vocabulary.matcher(grammar.text)
        # Copies begin with the lexer states that this finds. Otherwise each finds them with its first mask,
        # in a step: 32 rows of a schema with 300 patterns then take 18 ms for that, instead of 1 ms.
        fill_next_token_bitmask_par(LLExecutor(1), [(matcher, 0)], np.empty((1, vocabulary.words), np.int32))
        return _Compiled(matcher, rolls_back(matcher))

    def _vocabulary(self, end_tokens: Iterable[int]) -> Vocabulary:
        key = tuple(sorted(set(end_tokens)))
        if key not in self._vocabularies:
            if self.directory is None:
                raise GrammarError("this worker has no tokenizer")
            self._vocabularies[key] = Vocabulary(self.directory, self._vocab_size, key)
        return self._vocabularies[key]


def _announce(announce: Announce, number: int, compiled: "Future[_Compiled]") -> None:
    if not compiled.cancelled():
        announce(number)
