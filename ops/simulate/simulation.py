"""The simulation: a loop over the events of all workers and requests, in order of time.

Time jumps from event to event. A worker's event is the end of a step after which its scheduler must decide
something. Equal steps before it are simulated at once (`stretch.py`). If a request arrives at the worker
meanwhile, only the steps that are over by then are simulated at once.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random

from ops.simulate import SWAP_US
from ops.simulate.cost import MICROSECOND, SECOND, StepCost
from ops.simulate.ledger import Ledger, LiveRequest
from ops.simulate.stretch import TOKEN
from ops.simulate.trace import Arrival
from ops.simulate.worker import Worker
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import Outcome
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.request import Request
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup

VOCABULARY = 1 << 31
"""Vocabulary size of the simulated model."""
FROM_SOURCE = 0
"""Order of the load's own requests among requests of the same time: before further questions of chats."""


@dataclass(frozen=True)
class Setting:
    """The settings of a simulated deployment."""

    policy: str = "fcfs"
    """Scheduling policy."""
    workers: int = 1
    """Number of workers."""
    pool_blocks: int = 2048
    """Blocks in the pool of each worker."""
    step_tokens: int = 512
    """Token budget of a step."""
    slots: int = 64
    """Slots of each worker's batch."""
    block_size: int = 16
    """Tokens per block."""
    depth: int = 2
    """Plans in flight at once for each worker."""
    host_blocks: int = 0
    """Host slots of each worker, one block each."""
    swap_us: float = SWAP_US
    """Microseconds to copy one block to the host, or back."""
    drafts: float = 0.0
    """Chance that a draft holds if those before it in its row do; 0: no drafts are made."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"no policy {self.policy}: there are {', '.join(POLICIES)}")
        if not 0 <= self.drafts <= 1:
            raise ValueError(f"drafts {self.drafts}: a chance is from 0 to 1")

    def limits(self, cost: StepCost) -> WorkerLimits:
        """The limits of each worker. One sequence may fill the whole pool."""
        return WorkerLimits(
            num_blocks=self.pool_blocks,
            block_size=self.block_size,
            max_slots=self.slots,
            max_model_len=self.pool_blocks * self.block_size,
            max_step_tokens=self.step_tokens,
            vocab_size=VOCABULARY,
            host_blocks=self.host_blocks,
            swap_block_us=self.swap_us,
            token_us=cost.prefill / MICROSECOND,
        )


class Simulation:
    """The simulation of one load on one deployment."""

    def __init__(self, setting: Setting, cost: StepCost, requests: int, leaps: bool = True) -> None:
        """`requests`: number that will arrive. `leaps`: whether equal steps are simulated at once."""
        # Every token of an answer is the same, so that its text proposes the next ones.
        self._fleet = Fleet(setting.step_tokens, setting.policy, "ngram" if setting.drafts else "off")
        chance = Random(0)

        def holds() -> bool:
            return chance.random() < setting.drafts

        self._workers: list[Worker] = []
        self._number: dict[Scheduler, int] = {}
        for number in range(setting.workers):
            scheduler, _ = self._fleet.add_worker(setting.limits(cost))
            self._number[scheduler] = number
            swap = round(setting.swap_us * MICROSECOND)
            self._workers.append(Worker(scheduler, cost, setting.depth, leaps, swap, holds))
        self.ledger = Ledger(requests, setting.workers * setting.pool_blocks)
        self._lives: dict[SequenceGroup, LiveRequest] = {}
        self._events: list[tuple[int, int, int]] = []
        """Heap of workers' events: (time, worker, `Worker.version`). An event of an older version is void."""
        self._coming: list[tuple[int, int, LiveRequest]] = []
        """Heap of future requests: (time, order, request). The load's next one, and questions of chats."""
        self._names = count(1)
        self._prefixes: dict[str, int] = {}
        # When each worker's blocks were last counted, and how many there were.
        self._counted: list[tuple[int, int]] = [(0, 0)] * setting.workers

    def run(self, arrivals: Iterator[Arrival]) -> Ledger:
        """Simulate all requests. Raises `IntegrityError` if the core's state is inconsistent at the end."""
        source = map(self._live, arrivals)
        self._await(next(source, None), FROM_SOURCE)
        while True:
            wakes = self._next_event()
            at = self._coming[0][0] if self._coming else None
            if wakes is not None and (at is None or wakes <= at):
                now, number, _ = heappop(self._events)
                self._wake(number, now)
            elif at is not None:
                _, order, live = heappop(self._coming)
                if order == FROM_SOURCE:
                    self._await(next(source, None), FROM_SOURCE)
                self._arrive(live)
            else:
                break
        for worker in self._workers:
            worker.scheduler.check_integrity()
        self.ledger.preempted = sum(each.admissions for each in self._workers) - self.ledger.ended
        return self.ledger

    def _next_event(self) -> int | None:
        """Time of the next worker's event; None if there is none."""
        events = self._events
        while events and events[0][2] != self._workers[events[0][1]].version:
            heappop(events)
        return events[0][0] if events else None

    def _await(self, live: LiveRequest | None, order: int) -> None:
        if live is not None:
            heappush(self._coming, (live.asked, order, live))

    def _live(self, arrival: Arrival) -> LiveRequest:
        """A request of the load with the tokens of its prompt."""
        shared = self._prefixes.get(arrival.prefix, 0)
        if arrival.prefix and not shared:
            shared = self._prefixes[arrival.prefix] = next(self._names)
        own = arrival.prompt_tokens - arrival.shared_tokens
        text = array("i", [shared]) * arrival.shared_tokens + array("i", [next(self._names)]) * own
        return LiveRequest(round(arrival.at * SECOND), arrival, text, arrival.turns, arrival.output_tokens)

    def _arrive(self, live: LiveRequest) -> None:
        now, tenant = live.asked, live.arrival.tenant
        self.ledger.ask(live)
        request = Request(
            str(self.ledger.asked),
            live.text,
            live.missing,
            salt=tenant,
            tenant=tenant,
            priority=live.arrival.priority,
            deadline=now / SECOND + live.arrival.timeout,
        )
        group, outcome = self._fleet.accept(request)
        if outcome.failed:
            self.ledger.refuse(live)
            return
        self.ledger.fit(live, group.limit)
        self._lives[group] = live
        home = self._fleet.home(group)
        assert home is not None
        number = self._number[home]
        self._leap(number, now)
        self._plan(number, now)

    def _wake(self, number: int, now: int) -> None:
        """Handle a worker's event: one or more of its steps are over."""
        if not self._leap(number, now):
            worker = self._workers[number]
            outcome = worker.complete(now)
            self._fleet.settle(worker.scheduler, outcome)
            self._book(outcome, now)
        self._plan(number, now)

    def _leap(self, number: int, now: int) -> bool:
        """Record the equal steps of a worker that are over by now. Returns whether there were any."""
        groups, ends = self._workers[number].leap(now)
        if groups:
            self.ledger.tokens([self._lives[group] for group in groups], ends)
        return bool(groups)

    def _plan(self, number: int, now: int) -> None:
        """Let a worker make plans, and queue its next event."""
        worker = self._workers[number]
        since, before = self._counted[number]
        held = worker.scheduler.held_blocks
        # Blocks were allocated one by one since the last count, so the mean of the two counts is taken.
        self.ledger.held.add(since, now, (before + held) / 2)
        worker.pump(now)
        self._counted[number] = (now, worker.scheduler.held_blocks)
        if (wakes := worker.wakes) is not None:
            heappush(self._events, (wakes, number, worker.version))

    def _book(self, outcome: Outcome, now: int) -> None:
        ledger = self.ledger
        for gain in outcome.gains:
            live = self._lives[gain.group]
            ledger.token(live, now)
            if gain.finish:
                del self._lives[gain.group]
                ledger.end(live, gain.group.cached_tokens or 0, now)
                if live.turns:
                    self._go_on(live, now)

    def _go_on(self, live: LiveRequest, now: int) -> None:
        """Queue the next question of a chat. Its prompt begins with the conversation before it."""
        turn, *later = live.turns
        answer = array("i", [TOKEN]) * live.answered
        text = live.text + answer + array("i", [next(self._names)]) * turn.prompt_tokens
        at = now + round(turn.pause * SECOND)
        arrival = Arrival(at / SECOND, len(text), turn.output_tokens, tenant=live.arrival.tenant)
        question = LiveRequest(at, arrival, text, tuple(later), turn.output_tokens)
        self._await(question, next(self._names))
