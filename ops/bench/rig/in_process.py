"""The scheduler's core and the worker's runner in one process, without streams between them.

Plans are made in the caller's thread while the runner computes in another thread. As many plans are in flight
as in a deployment. The difference in speed to a deployment is the cost of its processes.
"""

import queue
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_worker.memory.host import HostOffer
from gpu_worker.step.runner import Runner
from ops.bench.load.client import Answer
from ops.bench.load.load import Conversations
from ops.bench.load.workload import Question
from ops.bench.rig.accounting import Tally, tokens
from ops.bench.rig.plans import GREEDY
from proto.sampling_pb2 import Grammar
from proto.worker_pb2 import StepPlan, StepResult
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import StepPlan as PlannedStep
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.wire import plan_to, result_from


@dataclass
class Times:
    """Where the time of a run went."""

    planning: float = 0.0
    """Seconds in the scheduler: plans are made and results are taken in."""
    computing: float = 0.0
    """Seconds in steps, as the worker measures them."""
    steps: int = 0
    """Number of steps."""


@dataclass
class TrackedRequest:
    """A request and its answer so far."""

    question: Question
    """The prompt and the length of the answer."""
    answer: Answer
    """Times and number of the answer's tokens."""
    tokens: list[list[int]] = field(default_factory=list)
    """Output tokens of each of the request's sequences."""


class InProcess:
    """A runner and a scheduler for it, in this process."""

    def __init__(
        self,
        runner: Runner,
        depth: int = 2,
        step_tokens: int = 512,
        shares: bool = True,
        num_blocks: int | None = None,
        policy: str = "fcfs",
        host: HostOffer | None = None,
        speculation: str = "off",
    ) -> None:
        """`depth`: plans in flight at once. `step_tokens`: token budget of a step.

        `shares`: whether requests share blocks of equal prefixes. False gives each request a salt of its own.
        `num_blocks`: blocks of the pool to use at most. `host`: the runner's host memory.
        """
        limits, host = runner.limits, host or HostOffer()
        runner.reset()
        self._compiled: queue.SimpleQueue[int] = queue.SimpleQueue()
        runner.announce_grammars(self._compiled.put)
        self._fleet = Fleet(step_tokens, policy, speculation)
        self._scheduler, _ = self._fleet.add_worker(
            WorkerLimits(
                num_blocks=min(limits.num_blocks, num_blocks or limits.num_blocks),
                block_size=limits.block_size,
                max_slots=limits.max_slots,
                max_model_len=limits.max_model_len,
                max_step_tokens=limits.max_step_tokens,
                vocab_size=limits.vocab_size,
                can_draft=runner.drafter is not None,
                **asdict(host),
                window=limits.window,
                recurrent=limits.recurrent,
            )
        )
        self._depth = depth
        self._shares = shares
        self._asked: dict[SequenceGroup, TrackedRequest] = {}
        self._runner = runner
        self._tally = Tally(limits.block_size)
        self._uncounted: list[PlannedStep] = []
        """Plans that `tally` has not counted yet."""
        self.times = Times()
        """Where the time of the run has gone so far."""
        self.admissions = 0
        """Number of times that a sequence was given a slot. A preempted sequence counts again."""
        self.swaps = 0
        """Number of blocks that were moved to the host or back."""

    @property
    def tally(self) -> Tally:
        """The tokens and blocks of the plans so far.

        They are counted when they are asked for. Beside a step they would keep the interpreter from the
        model's thread, the longer the more blocks there are.
        """
        for plan in self._uncounted:
            self._tally.apply(plan)
        self._uncounted.clear()
        return self._tally

    def ask(
        self, question: Question, n: int = 1, grammar: Grammar | None = None, **fields: Any
    ) -> TrackedRequest:
        """Submit a request, which `run` answers. Raises `ValueError` if it can never be served.

        `n`: number of answers. `grammar`: of the answer, which its end tokens end. `fields`: others of
        `Request`.
        """
        if grammar is not None:
            ends = frozenset(grammar.end_tokens)
            fields |= {"grammar": grammar.SerializeToString(), "stop_token_ids": ends}
        asked = TrackedRequest(question, Answer(sent=time.perf_counter()), [[] for _ in range(n)])
        number = len(self._asked)
        request = Request(
            str(number),
            array("i", tokens(question)),
            question.max_tokens,
            n=n,
            salt="" if self._shares else str(number),
            sampling=GREEDY,
            **fields,
        )
        group, outcome = self._fleet.accept(request)
        if outcome.failed:
            raise ValueError(str(outcome.failed[0][1]))
        asked.answer.prompt_tokens = len(request.prompt)
        self._asked[group] = asked
        return asked

    def cancel(self, asked: TrackedRequest) -> None:
        """End a request that `ask` returned; what has been answered of it stays."""
        self._fleet.cancel(next(group for group, tracked in self._asked.items() if tracked is asked))

    def closed_loop(self, conversations: Conversations, users: int) -> tuple[list[Answer], float]:
        """Run all conversations, `users` at a time. Returns their answers and the seconds that all took."""
        waiting = iter(conversations)
        going: dict[int, list[Question]] = {}

        def next_of(questions: list[Question]) -> None:
            if questions or (questions := list(next(waiting, ()))):
                asked = self.ask(questions[0])
                going[id(asked)] = questions[1:]

        begun = time.perf_counter()
        with Engine(self._runner) as engine:
            for _ in range(users):
                next_of([])
            for ended in self._ended(engine):
                next_of(going.pop(id(ended)))
        return [asked.answer for asked in self._asked.values()], time.perf_counter() - begun

    def run(self, after_step: Callable[[int], None] = lambda _: None, engine: "Engine | None" = None) -> None:
        """Answer all requests. `after_step` gets the number of steps after each, and may submit more.

        `engine`: what runs the model, and goes on afterwards; without one it is started and ended here.
        """
        with Engine(self._runner) if engine is None else nullcontext(engine) as running:
            for _ in self._ended(running, after_step):
                pass

    def _ended(
        self, engine: "Engine", after_step: Callable[[int], None] = lambda _: None
    ) -> Iterator[TrackedRequest]:
        """The requests in the order in which they end, until none is left."""
        while (ended := self.step(engine)) is not None:
            yield from ended
            after_step(self.times.steps)

    def step(self, engine: "Engine") -> list[TrackedRequest] | None:
        """Make plans, wait for the next result, and take it in.

        Returns the requests that ended with it, or None if no request is left.
        """
        while True:
            while not self._compiled.empty():
                self._scheduler.compiled(self._compiled.get())
            started = time.perf_counter()
            while self._scheduler.in_flight < self._depth and (plan := self._scheduler.plan()) is not None:
                self._uncounted.append(plan)
                self.admissions += len(plan.new_slots)
                self.swaps += len(plan.swap_out.blocks) + len(plan.swap_in.blocks)
                engine.submit(plan_to(plan))
            self.times.planning += time.perf_counter() - started
            if self._scheduler.in_flight:
                break
            if self._scheduler.idle:
                return None
            self._scheduler.compiled(self._compiled.get())
        message = engine.result()
        started = time.perf_counter()
        ended = self._record(message)
        self.times.planning += time.perf_counter() - started
        return ended

    def _record(self, message: StepResult) -> list[TrackedRequest]:
        """Take in the result of a step. Returns the requests that ended with it."""
        result, _ = result_from(message)
        if result.errors:
            raise RuntimeError(next(iter(result.errors.values())))
        self.times.computing += message.duration_us / 1e6
        self.times.steps += 1
        outcome = self._scheduler.complete(result)
        self._fleet.settle(self._scheduler, outcome)
        now = time.perf_counter()
        ended = []
        for gain in outcome.gains:
            asked = self._asked[gain.group]
            if gain.token >= 0:
                asked.tokens[gain.sequence_index].append(gain.token)
                asked.answer.chunks.append(now)
                asked.answer.output_tokens += 1
            if gain.finish and not gain.group.unfinished:
                asked.answer.ended = now
                ended.append(asked)
        return ended


class Engine:
    """A thread that runs the model: takes plans, gives results in the same order."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._plans: queue.SimpleQueue[StepPlan | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[StepResult | Exception] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)

    def __enter__(self) -> "Engine":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._plans.put(None)
        self._thread.join()

    def submit(self, plan: StepPlan) -> None:
        self._plans.put(plan)

    def result(self) -> StepResult:
        """Wait for the next result. Raises the step's exception if it failed."""
        result = self._results.get()
        if isinstance(result, Exception):
            raise result
        return result

    def _work(self) -> None:
        self._runner.enter()
        while (plan := self._plans.get()) is not None:
            try:
                self._results.put(self._runner.execute(plan))
            except Exception as error:
                self._results.put(error)


def gaps(answers: Sequence[Answer]) -> list[float]:
    """Milliseconds between one token and the next, of all answers."""
    return [1000 * gap for answer in answers for gap in answer.gaps]
