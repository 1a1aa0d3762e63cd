"""A worker that believes nothing: it checks every plan, and computes tokens from what is in memory.

`StrictWorker` takes the core's plans; `FakeWorkers` serves it over gRPC.
"""

import asyncio
import struct
import zlib
from array import array
from collections.abc import AsyncIterator, Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from proto import worker_pb2 as messages
from proto.images_pb2 import PromptImage
from proto.worker_pb2_grpc import WorkerServicer
from scheduler_svc.core.alternatives import NUMBERS
from scheduler_svc.core.beam_search import BeamSearch, Candidate, EarlyStopping, Search
from scheduler_svc.core.draft_state import Forced
from scheduler_svc.core.grammars import NewGrammar
from scheduler_svc.core.images import Image, images_between
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import (
    Copies,
    GivenTokens,
    NewSlot,
    PromptRows,
    PromptScores,
    Rows,
    StepPlan,
    StepResult,
    SwapIn,
    SwapOut,
    TableAppends,
    TableCuts,
)
from scheduler_svc.core.request import Pooling, Request

VOCAB = 40
POISON = VOCAB - 1
"""A row that computes this token fails."""
PARTIAL = -1
"""A sequence begins with a copy of a partial block: its first row says how many tokens it has computed."""


@lru_cache(maxsize=1 << 16)
def _key_value(before: int, token: int, position: int, means: str) -> int:
    """What is written to memory at a position: like keys and values, it depends on all that came before, and
    on what it is computed with (`_means`)."""
    return zlib.crc32(array("Q", (before, token, position)).tobytes(), zlib.crc32(means.encode()))


def _means(adapter: str, images: Sequence[Image], position: int) -> str:
    """With what a position is computed: the adapter, and what is seen there of an image."""
    for image in images:
        if image.position <= position < image.end:
            seen = image.digest.hex(), image.rows, image.columns, position - image.position
            return f"{adapter} {seen}"
    return adapter


def _next_token(memory: list[int], seed: int, index: int, place: int) -> int:
    """The model and the sampler: depends on every position's keys and values, on seed, index and the place
    in the text."""
    return zlib.crc32(array("Q", (*memory, seed, index, place)).tobytes()) % (VOCAB - 1)


def reference(request: Request, index: int, longest: int, window: int = 0) -> list[int]:
    """What a sequence must deliver in all, computed alone and without blocks. `longest`: of the context."""
    tokens = list(request.prompt)
    if request.beams is not None:
        return searched(request, longest, window)[index]
    most = min(request.max_tokens or inf, inf if request.rolling else longest - len(tokens))
    memory: list[int] = []
    output: list[int] = []
    assert isinstance(request.sampling, int)
    while len(output) < most and not (output and output[-1] in request.stop_token_ids):
        if request.rolling and len(tokens) == longest:
            tokens, memory = tokens[:4] + tokens[len(tokens) - longest // 2 + 4 :], []
        for position in range(len(memory), len(tokens)):
            before = memory[-1] if memory and window != 1 else 0
            means = _means(request.adapter, request.images, position)
            memory.append(_key_value(before, tokens[position], position, means))
        place = len(request.prompt) + len(output)
        output.append(_next_token(memory[-window:], request.sampling, index, place))
        tokens.append(output[-1])
    return output


def embedding(request: Request, window: int = 0) -> bytes:
    """What a text's embedding must be, computed alone and without blocks."""
    memory: list[int] = []
    for position, token in enumerate(request.prompt):
        before = memory[-1] if memory and window != 1 else 0
        memory.append(_key_value(before, token, position, request.adapter))
    return _pooled_by(request.pooling, memory)


def scores(request: Request, window: int = 0) -> list[tuple[int, int]]:
    """What must be reported of a prompt, computed alone and without blocks: of each token but the first."""
    memory: list[int] = []
    for position, token in enumerate(request.prompt[:-1]):
        before = memory[-1] if memory and window != 1 else 0
        means = _means(request.adapter, request.images, position)
        memory.append(_key_value(before, token, position, means))
    return list(zip(request.prompt[1:], memory, strict=True))


def _pooled_by(pooling: Pooling, memory: list[int]) -> bytes:
    if pooling is Pooling.ALL:
        return b"".join(_pooled([value]) for value in memory)
    some = {Pooling.MEAN: memory, Pooling.CLS: memory[:1]}
    return _pooled(some.get(pooling, memory[-1:]))


def _pooled(values: list[int]) -> bytes:
    """Two numbers of four bytes that depend on all values."""
    return array("Q", [sum(values)]).tobytes()


def _candidates(memory: list[int], count: int) -> list[Candidate]:
    """The model's most likely tokens, best first. Log probabilities in steps, so that there are ties."""
    start = zlib.crc32(array("Q", memory).tobytes())
    ranks = [zlib.crc32(token.to_bytes(8, "little"), start) % 64 for token in range(VOCAB - 1)]
    best = sorted(range(VOCAB - 1), key=lambda token: (ranks[token], token))[:count]
    return [Candidate(token, -1.0 - ranks[token] / 16) for token in best]


def searched(request: Request, longest: int, window: int) -> list[list[int]]:
    """What a beam search must deliver, computed alone and without blocks. `longest`: of the context."""
    assert request.beams is not None
    limit = min(len(request.prompt) + (request.max_tokens or longest), longest)
    search = Search(request.beams, request.stop_token_ids, limit - len(request.prompt))
    outputs = [array("i")]
    while not search.over:
        candidates = []
        for output in outputs:
            memory: list[int] = []
            for position, token in enumerate(request.prompt + output):
                before = memory[-1] if memory and window != 1 else 0
                means = _means(request.adapter, request.images, position)
                memory.append(_key_value(before, token, position, means))
            candidates.append(_candidates(memory[-window:], request.candidates))
        chosen = search.advance(outputs, candidates)
        outputs = [outputs[parent] + array("i", [token]) for parent, token in chosen]
    return [output.tolist() for output in search.best(request.n)]


@dataclass
class Slot:
    tokens: list[int]
    blocks: list[int]
    seed: int
    index: int
    computed: int
    dropped: int
    candidates: int = 0
    pooling: Pooling = Pooling.NO_POOLING
    failed: bool = False
    grammar: int = 0
    scores: bool = False
    adapter: str = ""
    images: Sequence[Image] = ()
    sight: int = 0
    pooled: list[int] = field(default_factory=list)
    """Of a text that is embedded: what its rows have computed."""


@dataclass
class StrictWorker:
    """Executes plans as a worker does. Any plan that a worker could not trust is an AssertionError."""

    limits: WorkerLimits
    seed_of: Callable[[object], int] = int  # type: ignore[assignment]
    slots: dict[int, Slot] = field(default_factory=dict)
    memory: list[list[int | None]] = field(init=False)
    """What each block holds; None where nothing was written."""
    states: list[int | None] = field(init=False)
    """Of a recurrent worker: what was written last to each block."""
    steps: int = 0
    computed_tokens: int = 0
    copies: int = 0
    host: dict[int, list[int | None]] = field(default_factory=dict)
    """What lies in each slot of host memory."""
    host_states: dict[int, int | None] = field(default_factory=dict)
    swapped_out: int = 0
    swapped_in: int = 0
    grammars: dict[int, bool] = field(default_factory=dict)
    """Those that it has, by number: whether it has compiled them."""
    sights: dict[int, bool] = field(default_factory=dict)
    """Images of slots, by number: whether it has seen them."""

    def __post_init__(self) -> None:
        self.memory = [[None] * self.limits.block_size for _ in range(self.limits.num_blocks)]
        self.states = [None] * self.limits.num_blocks

    def forget(self, block: int) -> None:
        """What the block held is gone."""
        self.memory[block] = [None] * self.limits.block_size
        self.states[block] = None

    def compile(self) -> list[int]:
        """Compile all grammars that have not been. Their numbers."""
        found = [number for number, compiled in self.grammars.items() if not compiled]
        self.grammars.update(dict.fromkeys(found, True))
        return found

    def look(self) -> list[int]:
        """See all images that have not been seen. Their numbers."""
        found = [number for number, seen in self.sights.items() if not seen]
        self.sights.update(dict.fromkeys(found, True))
        return found

    def execute(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        assert plan.step == self.steps
        for slot in plan.freed_slots:
            del self.slots[slot]
        for number in plan.dropped_grammars:
            assert all(held.grammar != number for held in self.slots.values()), "a grammar that is used"
            del self.grammars[number]
        for number, _ in plan.new_grammars:
            assert number not in self.grammars
            self.grammars[number] = False
        for new in plan.new_slots:
            assert 0 <= new.slot < self.limits.max_slots
            assert new.slot not in self.slots
            seed = self.seed_of(new.request.sampling)
            tokens, blocks = list(new.tokens), list(new.block_ids)
            hit = len(blocks) * self.limits.block_size
            if hit_tokens := new.forked_tokens:
                parent = self.slots[new.forked_from]
                assert hit_tokens <= parent.computed, "forked from what is not computed"
                assert len(blocks) == (hit_tokens % self.limits.block_size > 0)
                assert blocks == [] or blocks[0] in plan.copies.targets
                tokens = parent.tokens[:hit_tokens] + tokens
                blocks = parent.blocks[: hit_tokens // self.limits.block_size] + blocks
                hit = hit_tokens
            elif blocks and blocks[-1] in plan.copies.targets:
                assert self.limits.recurrent
                hit = PARTIAL
            count, dropped, pooling = new.request.candidates, new.dropped_tokens, Pooling(new.request.pooling)
            assert 0 < len(tokens) < self.limits.max_model_len + bool(pooling)
            assert hit < len(tokens)
            assert not (pooling is Pooling.MEAN and hit), "a mean over less than all tokens"
            self.slots[new.slot] = Slot(
                tokens, blocks, seed, new.sequence_index, hit, dropped, count, pooling, grammar=new.grammar
            )
            adapter = self.slots[new.slot].adapter = new.request.adapter
            assert self.limits.has(adapter), "a request for an adapter that the worker has not"
            assert not hit_tokens or parent.adapter == adapter
            assert self.limits.images or not new.images, "images, which the worker does not take"
            assert all(image.end <= len(tokens) for image in new.images)
            self.slots[new.slot].images = parent.images if hit_tokens else new.images
            self.slots[new.slot].sight = parent.sight if hit_tokens else new.sight
            if new.sight:
                assert new.sight not in self.sights
                assert new.images
                self.sights[new.sight] = False
            assert not new.grammar or new.grammar in self.grammars
            self.slots[new.slot].scores = new.request.scores_prompt
        for slot, blocks_kept in zip(plan.table_cuts.slots, plan.table_cuts.lengths, strict=True):
            held = self.slots[slot]
            assert (
                held.computed
                <= blocks_kept * self.limits.block_size
                < len(held.blocks) * self.limits.block_size
            )
            del held.blocks[blocks_kept:]
        for slot, block in zip(plan.table_appends.slots, plan.table_appends.blocks, strict=True):
            self.slots[slot].blocks.append(block)
        self._swap(plan)
        for slot, token in zip(plan.given_tokens.slots, plan.given_tokens.tokens, strict=True):
            assert self.slots[slot].candidates, "a token is given to what samples its own"
            self.slots[slot].tokens.append(token)
        assert not set(plan.copies.sources) & set(plan.copies.targets)
        assert len(set(plan.copies.targets)) == len(plan.copies.targets)
        for source, target in zip(plan.copies.sources, plan.copies.targets, strict=True):
            self.memory[target] = list(self.memory[source])
            self.states[target] = self.states[source]
            self.copies += 1
        for held in self.slots.values():
            seen = self._in_window(held)
            assert len(set(seen)) == len(seen)
            assert all(0 <= block < self.limits.num_blocks for block in held.blocks)
        return self._run(plan)

    def check_readable(
        self,
        tokens: Sequence[int],
        blocks: Sequence[int],
        dropped: int = 0,
        adapter: str = "",
        images: Sequence[Image] = (),
    ) -> None:
        """These tokens, computed one after the other, are in memory at their blocks and offsets.

        But for those in the first `dropped` blocks, which were given back.
        """
        values = self.values(tokens, adapter, images)[dropped * self.limits.block_size :]
        found = [value for block in blocks[dropped:] for value in self.memory[block]]
        assert found[: len(values)] == values, "a live token that cannot be read"

    def values(self, tokens: Sequence[int], adapter: str = "", images: Sequence[Image] = ()) -> list[int]:
        """What memory must hold of these tokens, computed one after the other."""
        values, before = list[int](), 0
        for position, token in enumerate(tokens):
            values.append(_key_value(before, token, position, _means(adapter, images, position)))
            before = values[-1] if self.limits.window != 1 else 0
        return values

    def _swap(self, plan: StepPlan) -> None:
        for places, number in (
            (plan.swap_out.host_slots, self.limits.host_blocks),
            (plan.swap_in.blocks, self.limits.num_blocks),
        ):
            assert len(set(places)) == len(places), "two contents for one place"
            assert all(0 <= place < number for place in places)
        for block, slot in zip(plan.swap_out.blocks, plan.swap_out.host_slots, strict=True):
            assert self.limits.recurrent or None not in self.memory[block], "a block that is not full"
            self.host[slot], self.host_states[slot] = list(self.memory[block]), self.states[block]
            self.swapped_out += 1
        for slot, block in zip(plan.swap_in.host_slots, plan.swap_in.blocks, strict=True):
            self.memory[block], self.states[block] = list(self.host[slot]), self.host_states[slot]
            self.swapped_in += 1

    def _run(self, plan: StepPlan) -> StepResult:
        rows = list(zip(plan.rows.slots, plan.rows.starts, plan.rows.counts, plan.rows.samples, strict=True))
        assert len({row[0] for row in rows}) == len(rows), "two rows of one slot"
        assert sum(plan.rows.counts) <= self.limits.max_step_tokens
        for slot, start, count, _ in rows:
            if any(images_between(self.slots[slot].images, start, start + count)):
                assert self.sights[self.slots[slot].sight], "the step would wait"
        if self.limits.whole_images:
            for slot, start, count, _ in rows:
                held = self.slots[slot]
                last = len(held.tokens) - 1  # which may have to wait for a grammar
                assert not any(each.position < start + count < min(each.end, last) for each in held.images)
        for slot, start, count, _ in rows:
            self._check_exclusive(slot, start, count)
        assert len(plan.draft_tokens) == sum(max(samples, 1) - 1 for *_, samples in rows)
        all_drafts = iter(plan.draft_tokens)
        tokens, errors, candidates, embeddings = list[int](), {}, {}, {}
        forced: dict[int, Forced] = {}
        vectors = 0
        for number, (slot, start, count, samples) in enumerate(rows):
            held = self.slots[slot]
            drafts = list(islice(all_drafts, max(samples, 1) - 1))
            if held.failed:  # planned before its first error was known
                errors[number] = "failed before"
                tokens += [-1] * samples
                continue
            if held.computed == PARTIAL:
                assert start % self.limits.block_size
                held.computed = start
            told = count - len(drafts)
            assert told >= 1
            assert start == held.computed, "positions are not continuous"
            assert start + told <= len(held.tokens), "a token that nobody knows"
            ends = start + told == len(held.tokens)
            assert bool(samples) == (ends and not held.pooling), "samples exactly at the end"
            assert start + count < self.limits.max_model_len or not drafts
            assert not (samples and held.grammar) or self.grammars[held.grammar], "the step would wait"
            self._write(held, start, told)
            held.computed += told
            self.computed_tokens += count
            if POISON in held.tokens[start : start + count]:
                errors[number] = "poison"
                held.failed = True
                tokens += [-1] * samples
            elif held.pooling:
                held.pooled += self._read(held, start)
                if held.pooling is Pooling.ALL:
                    embeddings[number] = _pooled_by(held.pooling, held.pooled[start:])
                    vectors += count
                elif ends:
                    embeddings[number] = _pooled_by(held.pooling, held.pooled)
                    vectors += 1
                assert not self.limits.bidirectional or count == len(held.tokens), "a text that is cut"
            elif samples:
                if held.candidates:
                    candidates[len(tokens)] = _candidates(self._seen(held), held.candidates)
                    tokens.append(candidates[len(tokens)][0].token)
                    continue
                run = self._verify(held, drafts)
                tokens += run + [-1] * (samples - len(run))
                if held.grammar and (foreseen := self.foreseen(held)):
                    forced[number] = foreseen
        size = self.limits.num_labels or self.limits.embedding_size
        assert vectors * size <= NUMBERS, "more vectors than a message holds"
        scores = self._scores(plan, errors)
        return StepResult(plan.step, tokens, errors, candidates, embeddings, 0, scores, forced)

    def _scores(self, plan: StepPlan, errors: Container[int]) -> dict[int, PromptScores]:
        """What rows report of their prompts: of each token what was in memory before it, and the token."""
        scores = {}
        for row, first, count in zip(*plan.prompt_rows, strict=True):
            held, start = self.slots[plan.rows.slots[row]], plan.rows.starts[row]
            assert held.scores, "not asked for"
            assert not held.dropped
            assert count > 0
            assert start < first <= start + plan.rows.counts[row] + 1 - count, "not after one of its tokens"
            if row not in errors:
                values = self._read(held, start)[first - 1 - start :]
                tokens = held.tokens[first : first + count]
                scores[row] = PromptScores(count, list(zip(tokens, values, strict=False)))
        return scores

    def _seen(self, held: Slot) -> list[int]:
        """What the newest computed position of a sequence sees."""
        return self._read(held, max(0, held.computed - self.limits.window) if self.limits.window else 0)

    def _read(self, held: Slot, start: int) -> list[int]:
        """What is in memory of a sequence's computed positions from `start` on."""
        size = self.limits.block_size
        blocks = held.blocks[start // size : -(-held.computed // size)]
        written = [value for block in blocks for value in self.memory[block]]
        skipped = start // size * size
        found = [value for value in written[start - skipped : held.computed - skipped] if value is not None]
        assert len(found) == held.computed - start, "read before it was written"
        return found

    def _verify(self, held: Slot, drafts: list[int]) -> list[int]:
        """Sample; as long as drafts are what is sampled, go on with what comes after them."""
        assert all(draft == -1 for draft in drafts) or all(0 <= draft < VOCAB for draft in drafts)
        assert self.limits.can_draft or -1 not in drafts
        run = list[int]()
        for number in range(1 + len(drafts)):
            read = self._seen(held)
            place = held.dropped + len(held.tokens)
            run.append(_next_token(read, held.seed, held.index, place))
            held.tokens.append(run[-1])
            if number == len(drafts):
                break
            draft = drafts[number]
            if draft == -1:  # the draft model is right two times out of three
                draft = run[-1] if read[-1] % 3 else (run[-1] + 1) % (VOCAB - 1)
            if draft != run[-1]:
                # All drafts are written before it is known that they do not hold.
                wrong = [draft, *(max(each, 0) for each in drafts[number + 1 :])]
                states = self.states.copy()
                self._write(replace(held, tokens=held.tokens[:-1] + wrong), held.computed, len(wrong))
                self.states = states  # these are not
                break
            self._write(held, held.computed, 1)
            held.computed += 1
        return run

    def foreseen(self, held: Slot) -> Forced | None:
        """What comes next, as if a grammar forced it: often nothing, and sometimes not the truth."""
        chance = Random(len(held.tokens) * 31 + held.seed)
        tokens = self.foresee(held, chance.randrange(-4, 9))
        if tokens and not chance.randrange(6):
            tokens[-1] = chance.randrange(VOCAB)
        start = len(held.tokens)
        if chance.randrange(2):
            start, tokens = start - 1, [held.tokens[-1], *tokens]
        return Forced(start, tokens) if tokens else None

    def foresee(self, held: Slot, count: int) -> list[int]:
        """The next `count` tokens that will be sampled of a sequence whose newest one is not computed yet."""
        tokens, seen = list(held.tokens), self._seen(held)
        for _ in range(count):
            before = 0 if self.limits.window == 1 else seen[-1]
            means = _means(held.adapter, held.images, len(tokens) - 1)
            seen.append(_key_value(before, tokens[-1], len(tokens) - 1, means))
            seen = seen[-self.limits.window :]
            tokens.append(_next_token(seen, held.seed, held.index, held.dropped + len(tokens)))
        return tokens[len(held.tokens) :]

    def _write(self, held: Slot, start: int, count: int) -> None:
        size = self.limits.block_size
        for position in range(start, start + count):
            alone = position == 0 or self.limits.window == 1
            at = position - 1
            before = 0 if alone else self.memory[held.blocks[at // size]][at % size]
            if self.limits.recurrent and not alone:
                assert before == self.states[held.blocks[at // size]], "the state after another token"
            assert before is not None, "read before it was written"
            means = _means(held.adapter, held.images, position)
            value = _key_value(before, held.tokens[position], position, means)
            self.memory[held.blocks[position // size]][position % size] = value
            self.states[held.blocks[position // size]] = value

    def _in_window(self, held: Slot) -> list[int]:
        """The blocks that a slot's next rows can read or write."""
        window = self.limits.window
        return held.blocks[max(0, held.computed + 1 - window) // self.limits.block_size if window else 0 :]

    def _check_exclusive(self, slot: int, start: int, count: int) -> None:
        size = self.limits.block_size
        written = set(self.slots[slot].blocks[start // size : (start + count - 1) // size + 1])
        for other, held in self.slots.items():
            assert other == slot or written.isdisjoint(self._in_window(held)), "writes to another one's block"


def pack(numbers: Any) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def unpack(packed: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(packed) // 4}i", packed))


def numbers(packed: bytes) -> tuple[int, ...]:
    return tuple(unpack(packed))


def decoded(plan: messages.StepPlan) -> StepPlan:
    """A plan as the strict worker takes it, decoded by other code than what encoded it."""
    new_slots = [
        NewSlot(
            new.slot,
            SimpleNamespace(  # type: ignore[arg-type]
                sampling=new.sampling,
                candidates=new.candidates,
                pooling=new.pooling,
                scores_prompt=new.sampling.HasField("prompt_logprobs"),
                adapter=new.adapter,
                images=tuple(map(image_from, new.images)),
            ),
            new.sequence_index,
            unpack(new.tokens),  # type: ignore[arg-type]
            unpack(new.block_ids),
            new.forked_from if new.forked_tokens else -1,
            new.forked_tokens,
            new.dropped_tokens,
            new.grammar,
            new.sight,
        )
        for new in plan.new_slots
    ]

    rows = plan.rows
    return StepPlan(
        plan.step,
        numbers(plan.freed_slots),
        numbers(plan.dropped_grammars),
        tuple(NewGrammar(new.number, new.grammar.SerializeToString()) for new in plan.new_grammars),
        tuple(new_slots),
        TableCuts(numbers(plan.table_cuts.slots), numbers(plan.table_cuts.lengths)),
        TableAppends(numbers(plan.table_appends.slots), numbers(plan.table_appends.blocks)),
        GivenTokens(numbers(plan.given_tokens.slots), numbers(plan.given_tokens.tokens)),
        SwapOut(numbers(plan.swap_out.blocks), numbers(plan.swap_out.host_slots)),
        SwapIn(numbers(plan.swap_in.host_slots), numbers(plan.swap_in.blocks)),
        Copies(numbers(plan.copies.sources), numbers(plan.copies.targets)),
        Rows(numbers(rows.slots), numbers(rows.starts), numbers(rows.counts), tuple(rows.samples)),
        numbers(plan.draft_tokens),
        PromptRows(*(numbers(getattr(plan.prompt_rows, name)) for name in PromptRows._fields)),
    )


def image_from(image: PromptImage) -> Image:
    assert not image.data
    file = image.file
    return Image(image.position, image.tokens, image.rows, image.columns, file.digest, file.name)


def encode_scores(message: messages.PromptLogprobs, result: StepResult) -> None:
    """Log probabilities of prompts: the key before each token as its rank, and one alternative."""
    found = result.prompt_scores
    every = [entry for scores in found.values() for entry in scores.values]  # type: ignore[attr-defined]
    message.rows.rows = pack(list(found))
    message.rows.counts = pack([scores.length for scores in found.values()])
    message.rows.alternatives = pack([1] * len(found))
    message.logprobs = struct.pack(f"<{len(every)}f", *(-token for token, _ in every))
    message.ranks = pack([key & 0x7FFFFFFF for _, key in every])
    message.top.tokens = pack([token for token, _ in every])
    message.top.logprobs = message.logprobs


def message_of(result: StepResult) -> messages.StepResult:
    """A result as a worker sends it."""
    message = messages.StepResult(step=result.step, tokens=pack(result.tokens), duration_us=1)
    if result.candidates:
        every = result.candidates.values()
        message.candidates.entries = pack(list(result.candidates))
        message.candidates.counts = pack([len(some) for some in every])
        message.candidates.top.tokens = pack([each.token for some in every for each in some])
        logprobs = [each.logprob for some in every for each in some]
        message.candidates.top.logprobs = struct.pack(f"<{len(logprobs)}f", *logprobs)
    if result.embeddings:
        message.embeddings.rows = pack(list(result.embeddings))
        message.embeddings.vectors = b"".join(result.embeddings.values())
        message.embeddings.counts = pack([len(vectors) // 8 for vectors in result.embeddings.values()])
    if result.prompt_scores:
        encode_scores(message.prompt_logprobs, result)
    message.errors.extend(messages.RowError(row=row, message=text) for row, text in result.errors.items())
    if result.forced:
        every_run = result.forced.values()
        message.forced.runs.rows = pack(list(result.forced))
        message.forced.runs.starts = pack([run.start for run in every_run])
        message.forced.runs.counts = pack([len(run.tokens) for run in every_run])
        message.forced.tokens = pack([token for run in every_run for token in run.tokens])
    return message


class FakeWorkers(WorkerServicer):  # type: ignore[misc]
    """Workers at one door. Each serves one call at a time, as a process would."""

    def __init__(self, limits: WorkerLimits) -> None:
        self.limits = limits
        self.free = asyncio.Semaphore(0)
        self.workers: list[Any] = []
        self.plans: list[messages.StepPlan] = []
        self.going = asyncio.Event()
        self.going.set()
        self.dying = asyncio.Event()
        self.received = asyncio.Event()
        """A plan has come since a worker joined."""
        self.faults: list[AssertionError] = []
        """Plans that a worker could not trust."""
        self.spoil: Callable[[messages.StepResult], None] = lambda result: None
        self.last_words: tuple[tuple[str, str], ...] = ()
        """Trailing metadata of a worker that is killed."""
        self.raises: Callable[[messages.StepPlan], bool] = lambda plan: False
        """Whether the worker's code raises an error in this step."""

    def join(self) -> None:
        self.dying, self.received = asyncio.Event(), asyncio.Event()
        self.free.release()

    def kill(self) -> None:
        self.dying.set()

    async def Execute(
        self, plans: AsyncIterator[messages.StepPlan], context: Any
    ) -> AsyncIterator[messages.WorkerEvent]:
        await self.free.acquire()
        try:
            dying = self.dying
            worker = StrictWorker(self.limits, seed_of=lambda sampling: sampling.seed)
            self.workers.append(worker)
            fields = {name: getattr(self.limits, name) for name in WorkerLimits.__slots__}
            adapters = self.limits.adapters.items()
            fields["adapters"] = [messages.Adapter(name=name, fingerprint=each) for name, each in adapters]
            yield messages.WorkerEvent(ready=messages.WorkerReady(model="m", **fields))
            stream = aiter(plans)
            while (plan := await self._next(stream, dying)) is not None:
                if self.raises(plan):
                    await context.abort(grpc.StatusCode.INTERNAL, "a shape does not fit", self.last_words)
                yield messages.WorkerEvent(result=self._execute(worker, plan))
                for number in worker.compile():
                    yield messages.WorkerEvent(compiled=number)
                for number in worker.look():
                    yield messages.WorkerEvent(seen=number)
        finally:
            if not dying.is_set():  # else it does not come back to take another call
                self.free.release()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "killed", self.last_words)

    async def _next(
        self, stream: AsyncIterator[messages.StepPlan], dying: asyncio.Event
    ) -> messages.StepPlan | None:
        async def plan() -> messages.StepPlan:
            message = await anext(stream)
            self.received.set()
            await self.going.wait()
            return message

        getting, death = asyncio.ensure_future(plan()), asyncio.ensure_future(dying.wait())
        await asyncio.wait((getting, death), return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if dying.is_set():
            getting.cancel()
            return None
        try:
            return await getting
        except StopAsyncIteration:
            return None

    def _execute(self, worker: Any, plan: messages.StepPlan) -> messages.StepResult:
        self.plans.append(plan)
        try:
            result = worker.execute(decoded(plan))
        except AssertionError as fault:
            self.faults.append(fault)
            raise
        message = message_of(result)
        wants = any(slot.sampling.HasField("logprobs") for slot in plan.new_slots)
        if wants:
            count = len(result.tokens)
            message.logprobs.entries = pack(range(count))
            message.logprobs.logprobs = struct.pack(f"<{count}f", *[-0.5] * count)
            message.logprobs.top_counts = pack([2] * count)
            message.logprobs.top.tokens = pack([each for token in result.tokens for each in (token, 0)])
            message.logprobs.top.logprobs = struct.pack(f"<{2 * count}f", *[-0.5, -1.5] * count)
        self.spoil(message)
        return message


def make_limits(**changes: float) -> WorkerLimits:
    """With host memory, it pays."""
    values = {
        "num_blocks": 16,
        "block_size": 4,
        "max_slots": 4,
        "max_model_len": 64,
        "max_step_tokens": 16,
        "vocab_size": VOCAB,
        "host_blocks": 0,
        "embedding_size": 2,
    }
    costs = {"swap_block_us": 0.4, "token_us": 1.0}
    return WorkerLimits(**{**values, **costs, **changes})  # type: ignore[arg-type]


def make_request(prompt: list[int], name: str = "r", seed: int = 7, **fields: object) -> Request:
    if width := fields.pop("beams", 0):
        penalty, stopping = [-1.0, 0.0, 1.0, 2.0][seed % 4], EarlyStopping(seed % 3)
        fields["beams"] = BeamSearch(width, penalty, stopping)  # type: ignore[arg-type]
        fields["n"] = min(width, fields.get("n", 1))  # type: ignore[type-var]
    return Request(name, array("i", prompt), sampling=seed, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def fake() -> SimpleNamespace:
    """The strict worker, its reference, and makers of limits and requests."""
    return SimpleNamespace(
        StrictWorker=StrictWorker,
        Workers=FakeWorkers,
        message_of=message_of,
        reference=reference,
        embedding=embedding,
        scores=scores,
        limits=make_limits,
        request=make_request,
        POISON=POISON,
    )
