"""A worker that believes nothing: it checks every plan, and computes tokens from what is in memory."""

import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.request import Request

VOCAB = 40
POISON = VOCAB - 1
"""A row that computes this token fails."""


def _key_value(before: int, token: int, position: int) -> int:
    """What is written to memory at a position: like keys and values, it depends on all that came before."""
    return zlib.crc32(array("Q", (before, token, position)).tobytes())


def _next_token(memory: list[int], seed: int, index: int) -> int:
    """The model and the sampler: depends on every position's keys and values, on seed and index."""
    return zlib.crc32(array("Q", (*memory, seed, index)).tobytes()) % (VOCAB - 1)


def reference(request: Request, index: int, longest: int) -> list[int]:
    """What a sequence must deliver in all, computed alone and without blocks. `longest`: of the context."""
    tokens = list(request.prompt)
    limit = len(tokens) + request.max_tokens if request.max_tokens else longest
    memory: list[int] = []
    output: list[int] = []
    assert isinstance(request.sampling, int)
    while len(tokens) < limit and not (output and output[-1] in request.stop_token_ids):
        for position in range(len(memory), len(tokens)):
            memory.append(_key_value(memory[-1] if memory else 0, tokens[position], position))
        output.append(_next_token(memory, request.sampling, index))
        tokens.append(output[-1])
    return output


@dataclass
class Slot:
    tokens: list[int]
    blocks: list[int]
    seed: int
    index: int
    computed: int


@dataclass
class StrictWorker:
    """Executes plans as a worker does. Any plan that a worker could not trust is an AssertionError."""

    limits: WorkerLimits
    seed_of: Callable[[object], int] = int  # type: ignore[assignment]
    slots: dict[int, Slot] = field(default_factory=dict)
    memory: dict[tuple[int, int], int] = field(default_factory=dict)
    steps: int = 0
    computed_tokens: int = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        assert plan.step == self.steps
        for slot in plan.freed_slots:
            del self.slots[slot]
        for new in plan.new_slots:
            assert 0 <= new.slot < self.limits.max_slots
            assert new.slot not in self.slots
            assert 0 < len(new.tokens) < self.limits.max_model_len
            seed = self.seed_of(new.request.sampling)
            hit = len(new.block_ids) * self.limits.block_size
            assert hit < len(new.tokens)
            self.slots[new.slot] = Slot(list(new.tokens), list(new.block_ids), seed, new.sequence_index, hit)
        for slot, block in zip(plan.block_slots, plan.block_ids, strict=True):
            self.slots[slot].blocks.append(block)
        for held in self.slots.values():
            assert len(set(held.blocks)) == len(held.blocks)
            assert all(0 <= block < self.limits.num_blocks for block in held.blocks)
        return self._run(plan)

    def _run(self, plan: StepPlan) -> StepResult:
        rows = list(zip(plan.row_slots, plan.row_starts, plan.row_counts, plan.row_samples, strict=True))
        assert len({row[0] for row in rows}) == len(rows), "two rows of one slot"
        assert sum(plan.row_counts) <= self.limits.max_step_tokens
        for slot, start, count, _ in rows:
            self._check_exclusive(slot, start, count)
        tokens, errors = [], {}
        for number, (slot, start, count, samples) in enumerate(rows):
            held = self.slots[slot]
            assert count >= 1
            assert start == held.computed, "positions are not continuous"
            assert start + count <= len(held.tokens), "a token that nobody knows"
            assert bool(samples) == (start + count == len(held.tokens)), "samples exactly at the end"
            self._write(held, start, count)
            held.computed += count
            self.computed_tokens += count
            if POISON in held.tokens[start : start + count]:
                errors[number] = "poison"
                tokens += [-1] * samples
            elif samples:
                read = [self.memory[self._place(held, at)] for at in range(held.computed)]
                held.tokens.append(_next_token(read, held.seed, held.index))
                tokens.append(held.tokens[-1])
        return StepResult(plan.step, tokens, errors)

    def _place(self, held: Slot, position: int) -> tuple[int, int]:
        size = self.limits.block_size
        return held.blocks[position // size], position % size

    def _write(self, held: Slot, start: int, count: int) -> None:
        for position in range(start, start + count):
            before = self.memory[self._place(held, position - 1)] if position else 0
            self.memory[self._place(held, position)] = _key_value(before, held.tokens[position], position)

    def _check_exclusive(self, slot: int, start: int, count: int) -> None:
        size = self.limits.block_size
        written = set(self.slots[slot].blocks[start // size : (start + count - 1) // size + 1])
        for other, held in self.slots.items():
            assert other == slot or written.isdisjoint(held.blocks), "writes to another one's block"


def make_limits(**changes: int) -> WorkerLimits:
    values = {
        "num_blocks": 16,
        "block_size": 4,
        "max_slots": 4,
        "max_model_len": 64,
        "max_step_tokens": 16,
        "vocab_size": VOCAB,
    }
    return WorkerLimits(**{**values, **changes})


def make_request(prompt: list[int], name: str = "r", seed: int = 7, **fields: object) -> Request:
    return Request(name, array("i", prompt), sampling=seed, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def fake() -> SimpleNamespace:
    """The strict worker, its reference, and makers of limits and requests."""
    return SimpleNamespace(
        StrictWorker=StrictWorker,
        reference=reference,
        limits=make_limits,
        request=make_request,
        POISON=POISON,
    )


@pytest.fixture
def numbers() -> Iterator[int]:
    """1, 2, 3, ..."""
    return iter(range(1, 1 << 30))
