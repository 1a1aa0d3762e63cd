"""The steps of one worker, noted while somebody looks."""

from proto.arrays import pack, unpack
from proto.inside_pb2 import Step
from proto.worker_pb2 import StepResult
from scheduler_svc.core.flight import REJECTED
from scheduler_svc.core.plan import StepPlan
from scheduler_svc.core.prefill_budget import PrefillBudget

MOST_STEPS = 256
"""Answered steps that are kept for one who does not take them."""


class StepLog:
    """Made of the plans that a worker is given and the results that come back."""

    def __init__(self, step_tokens: int, prefill_budget: PrefillBudget) -> None:
        """`step_tokens`: that a step may compute. `prefill_budget`: how many of them prompts may have."""
        self._step_tokens, self._prefill_budget = step_tokens, prefill_budget
        self._planned: dict[int, tuple[Step, int]] = {}
        """Steps under way by number, each with the rows that sample."""
        self._answered: list[Step] = []

    def planned(self, plan: StepPlan) -> None:
        """The worker is given a step."""
        rows = plan.rows
        # A row that decodes samples as many tokens as it computes, with drafts or without.
        chunks = [count for count, sampled in zip(rows.counts, rows.samples, strict=True) if count > sampled]
        prompts = sum(chunks)
        decoded = sum(rows.counts) - prompts
        room = self._step_tokens - decoded
        if decoded:
            room = self._prefill_budget.beside_decodes(room)
        forked = sum(1 for new in plan.new_slots if new.forked_from >= 0)
        step = Step(
            number=plan.step,
            decodes=len(rows.counts) - len(chunks),
            chunks=len(chunks),
            prompt_tokens=prompts,
            drafts=len(plan.draft_tokens),
            budget=decoded + max(prompts, room),
            admitted=len(plan.new_slots) - forked,
            forked=forked,
            copied_from=pack(plan.copies.sources),
            copied_to=pack(plan.copies.targets),
            swapped_out=pack(plan.swap_out.blocks),
            swapped_in=pack(plan.swap_in.blocks),
        )
        self._planned[plan.step] = step, sum(1 for sampled in rows.samples if sampled)

    def computed(self, result: StepResult) -> None:
        """The worker has answered a step. One that was planned before anybody looked is passed over."""
        step, sampling = self._planned.pop(result.step, (None, 0))
        if step is None:
            return
        step.sampled = sum(1 for token in unpack(result.tokens) if token != REJECTED)
        step.drafts_held = max(0, step.sampled - sampling)
        step.duration_us = result.duration_us
        self._answered.append(step)
        del self._answered[:-MOST_STEPS]

    def take(self) -> list[Step]:
        """The steps that were answered since this was called before, oldest first."""
        taken, self._answered = self._answered, []
        return taken
