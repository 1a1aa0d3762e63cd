"""The scheduler's core over a runner, plan by plan, without processes: what reaches the worker is what
the wire would bring."""

from array import array
from collections import defaultdict, deque
from queue import SimpleQueue
from typing import cast

import torch
from torch import Tensor

from gpu_worker.step.runner import Runner
from proto.scheduler_pb2 import PromptScores
from proto.worker_pb2 import StepResult
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import Gain
from scheduler_svc.core.request import Request
from scheduler_svc.core.sequence import SequenceGroup
from scheduler_svc.wire import plan_to, result_from


class ClosedLoop:
    """One worker; two plans under way."""

    def __init__(self, runner: Runner, speculation: str = "off") -> None:
        limits = runner.limits
        runner.reset()
        self.compiled: SimpleQueue[int] = SimpleQueue()
        runner.announce_grammars(self.compiled.put)
        self.runner = runner
        self.fleet = Fleet(limits.max_step_tokens, speculation=speculation)
        self.scheduler, _ = self.fleet.add_worker(
            WorkerLimits(
                limits.num_blocks,
                limits.block_size,
                limits.max_slots,
                limits.max_model_len,
                limits.max_step_tokens,
                limits.vocab_size,
                window=limits.window,
                embedding_size=limits.embedding_size,
                num_labels=limits.num_labels,
                bidirectional=limits.bidirectional,
                headless=limits.headless,
                recurrent=limits.recurrent,
                can_draft=runner.drafter is not None,
            )
        )
        self.results: deque[StepResult] = deque()
        self.step_tokens: list[int] = []
        """Tokens that each step computed."""
        self.embedded: dict[SequenceGroup, bytes] = {}
        """Embeddings that are complete."""
        self.scored: dict[SequenceGroup, list[PromptScores]] = defaultdict(list)
        """Log probabilities of prompts."""

    def ask(self, request: Request) -> SequenceGroup:
        group, outcome = self.fleet.accept(request)
        assert not outcome.failed, outcome.failed
        return group

    def step(self) -> list[Gain]:
        """Complete one plan; what it brought. If nothing can run, wait for a grammar instead."""
        while not self.compiled.empty():
            self.scheduler.compiled(self.compiled.get())
        while self.scheduler.in_flight < 2 and (plan := self.scheduler.plan()) is not None:
            self.step_tokens.append(sum(plan.rows.counts))
            self.results.append(self.runner.execute(plan_to(plan)))
        if not self.results:
            self.scheduler.compiled(self.compiled.get(timeout=60))
            return []
        message = self.results.popleft()
        message.duration_us = 0  # not known: what is planned must not depend on how busy the machine is
        result, _ = result_from(message)
        assert not result.errors, result.errors
        outcome = self.scheduler.complete(result)
        self.fleet.settle(self.scheduler, outcome)
        self.embedded.update(outcome.embedded)
        for group, scores in outcome.scored:
            self.scored[group].append(cast(PromptScores, scores.values))
        return outcome.gains

    def embed(self, *requests: Request) -> list[Tensor]:
        """The vectors of the requests, float32 [numbers] each, which run side by side."""
        groups = [self.ask(request) for request in requests]
        while not all(group in self.embedded for group in groups):
            self.step()
        return [torch.frombuffer(bytearray(self.embedded[group]), dtype=torch.float32) for group in groups]

    def generate(self, request: Request, count: int) -> "array[int]":
        """Generate a number of tokens of one sequence, then cancel it."""
        group, tokens = self.ask(request), array("i")
        while len(tokens) < count:
            tokens.extend(gain.token for gain in self.step() if gain.group is group)
        self.fleet.cancel(group)
        return tokens
