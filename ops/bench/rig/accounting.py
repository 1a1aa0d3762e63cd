"""Accounting of a batch: tokens and memory that it uses, compared with what its requests need.

A request of p prompt tokens and o answer tokens needs p + o - 1 tokens computed, because its last token is
not an input of the model. Until it ends it needs memory for the tokens that were computed so far. Everything
else is waste: padding, rows that have ended, memory reserved for tokens that may never come.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Self

from ops.bench.load.workload import Question
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import StepPlan, StepResult
from scheduler_svc.core.request import Request


@dataclass(frozen=True)
class Books:
    """The accounts of one run. All numbers are tokens."""

    needed: int = 0
    """Tokens that had to be computed."""
    computed: int = 0
    """Tokens that were computed."""
    held: list[int] = field(default_factory=list)
    """KV memory that running requests held after each step."""
    used: list[int] = field(default_factory=list)
    """Part of `held` with keys and values that a running request still needed, after each step."""

    @property
    def efficiency(self) -> float:
        """Needed over computed. Above 1 if requests share prefixes."""
        return self.needed / self.computed

    def __add__(self, other: Self) -> "Books":
        return Books(
            self.needed + other.needed,
            self.computed + other.computed,
            self.held + other.held,
            self.used + other.used,
        )

    def summary(self, bytes_per_token: int) -> dict[str, float]:
        """Figures for a result: the efficiency, and memory in MiB as peak and mean over the steps."""
        mib = bytes_per_token / 2**20
        wasted = [held - used for held, used in zip(self.held, self.used, strict=True)]
        return {
            "batch_efficiency": round(self.efficiency, 4),
            "kv_held_peak_mib": round(max(self.held) * mib, 3),
            "kv_held_mean_mib": round(fmean(self.held) * mib, 3),
            "kv_used_mean_mib": round(fmean(self.used) * mib, 3),
            "kv_wasted_peak_mib": round(max(wasted) * mib, 3),
            "kv_wasted_mean_mib": round(fmean(wasted) * mib, 3),
            "kv_wasted_share": round(sum(wasted) / sum(self.held), 4),
        }


def tokens(question: Question) -> list[int]:
    """Token ids of the question's prompt. Raises `TypeError` if the prompt is text."""
    if isinstance(question.prompt, str):
        raise TypeError("prompts of token ids are needed, not text")
    return question.prompt


def needed(questions: Iterable[Question]) -> int:
    """Tokens that must be computed to answer all questions."""
    return sum(len(tokens(question)) + question.max_tokens - 1 for question in questions)


def static_batch(questions: Sequence[Question]) -> Books:
    """Accounts of one padded batch: every row is as long, and runs as many steps, as the longest."""
    rows = len(questions)
    longest = max(len(tokens(question)) for question in questions)
    steps = max(question.max_tokens for question in questions)
    used = [
        sum(len(tokens(question)) + step for question in questions if step < question.max_tokens)
        for step in range(steps)
    ]
    return Books(
        needed=needed(questions),
        computed=rows * (longest + steps - 1),
        held=[rows * (longest + step) for step in range(steps)],
        used=used,
    )


def continuous_batch(
    questions: Sequence[Question], users: int, limits: WorkerLimits, step_tokens: int, depth: int
) -> Books:
    """Accounts of Quire's scheduler, which plans a closed loop of `users` for a worker that only counts.

    `depth`: plans in flight at once. A user asks again before the next plan is made; in a deployment this
    takes a little longer.
    """
    fleet = Fleet(step_tokens)
    scheduler, _ = fleet.add_worker(limits)
    waiting = iter(enumerate(questions))
    worker = Tally(limits.block_size)

    def ask() -> None:
        for number, question in waiting:
            fleet.accept(Request(str(number), array("i", tokens(question)), question.max_tokens))
            return

    for _ in range(users):
        ask()
    flights: deque[StepPlan] = deque()
    while True:
        while len(flights) < depth and (plan := scheduler.plan()) is not None:
            worker.apply(plan)
            flights.append(plan)
        if not flights:
            break
        answered = flights.popleft()
        outcome = scheduler.complete(StepResult(answered.step, [0] * sum(answered.rows.samples)))
        fleet.settle(scheduler, outcome)
        for gain in outcome.gains:
            if gain.finish:
                ask()
    return Books(needed(questions), worker.computed, worker.held, worker.used)


class Tally:
    """Applies plans to block tables as a worker does, and counts tokens instead of computing them."""

    def __init__(self, block_size: int) -> None:
        self.computed = 0
        """Tokens that plans have computed."""
        self.held: list[int] = []
        """See `Books.held`."""
        self.used: list[int] = []
        """See `Books.used`."""
        self._block_size = block_size
        self._tables: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}

    def apply(self, plan: StepPlan) -> None:
        for slot in plan.freed_slots:
            self._tables.pop(slot, None)
            self._lengths.pop(slot, None)
        for new in plan.new_slots:
            shared = (
                self._tables[new.forked_from][: new.forked_tokens // self._block_size]
                if new.forked_tokens
                else []
            )
            self._tables[new.slot] = [*shared, *new.block_ids]
        for slot, blocks in zip(*plan.table_cuts, strict=True):
            del self._tables[slot][blocks:]
        for slot, block in zip(*plan.table_appends, strict=True):
            self._tables[slot].append(block)
        for slot, start, count, _ in zip(*plan.rows, strict=True):
            self._lengths[slot] = start + count
            self.computed += count
        if plan.rows.slots:
            full = self._filled()
            self.held.append(len(full) * self._block_size)
            self.used.append(sum(full.values()))

    def _filled(self) -> dict[int, int]:
        """Number of tokens in each block of a table, by block id. A block that tables share counts once."""
        full: dict[int, int] = {}
        for slot, table in self._tables.items():
            length = self._lengths.get(slot, 0)
            for number, block in enumerate(table):
                tokens = min(self._block_size, max(0, length - number * self._block_size))
                full[block] = max(full.get(block, 0), tokens)
        return full
