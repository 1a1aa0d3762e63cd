"""The scheduler of one worker: takes requests, makes plans, takes in results.

    submit ─▶ waiting ─▶ plan() ─▶ in flight ─▶ complete() ─▶ gains

`plan` may be called again before `complete`. A sequence's next row then uses a token that is still in flight,
which the worker finds in the sequence's slot. With one plan in flight at most this is the lock-step loop.
With more it plans ahead, and every request gets the same tokens.

A token in flight may end its sequence, which planning ahead cannot know. Then one row was computed for
nothing. The sequence's epoch has changed by the time its result comes, so the result is dropped.
"""

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Series
from dataclasses import replace

from scheduler_svc.core.batch import PartialBlock
from scheduler_svc.core.blocks import ON_HOST
from scheduler_svc.core.capabilities import beams, samples
from scheduler_svc.core.drafters import Speculation
from scheduler_svc.core.errors import WorkerFault
from scheduler_svc.core.flight import Flight
from scheduler_svc.core.integrity import check_integrity
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.phases.settle import settle
from scheduler_svc.core.plan import Outcome, StepPlan, StepResult
from scheduler_svc.core.planner import plan_step
from scheduler_svc.core.policies import Policy
from scheduler_svc.core.sequence import SequenceGroup, State
from scheduler_svc.core.state import SchedulerState
from scheduler_svc.core.suspicion import Loss, Span


class Scheduler:
    """Decides for one worker. Deterministic: the same calls give the same plans."""

    def __init__(
        self,
        limits: WorkerLimits,
        token_budget: int,
        policy: Policy | None = None,
        speculation: Speculation | None = None,
        step_seconds: float | None = None,
    ) -> None:
        """`token_budget`: tokens that a step may compute; the worker may allow fewer. `step_seconds`: what a
        step with decodes should take."""
        budget = min(token_budget, limits.max_step_tokens)
        if limits.bidirectional:  # no text is cut
            budget = max(budget, limits.max_model_len)
        self.limits = limits = replace(limits, max_step_tokens=budget)
        # With no more slots than tokens in a step, decodes can never shut out all prefills.
        self.slots = min(limits.max_slots, budget)
        self.state = SchedulerState(limits, self.slots, policy or Policy(), speculation, step_seconds)
        self.flights: deque[Flight] = deque()
        """Plans that have not been answered yet, oldest first."""
        self.step = 0
        """Number of the newest plan."""
        self.paused = False
        """Plan nothing more, so that the worker comes to rest."""
        self.plan_again = False
        """`plan` gave None, but has not looked at all that wait: see `StepBuilder.may_name`."""

    @property
    def in_flight(self) -> int:
        """Number of plans that have not been answered yet."""
        return len(self.flights)

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is in flight."""
        return not (self.state.groups or self.flights)

    @property
    def unfinished(self) -> int:
        """Number of requests that have not ended."""
        return len(self.state.groups)

    @property
    def room(self) -> int:
        """Number of sequences that need not wait for others: free slots, while there are blocks."""
        return 0 if self.state.short_of_blocks else len(self.state.batch.free_slots)

    @property
    def held_blocks(self) -> int:
        """Number of blocks that running sequences hold."""
        return self.limits.num_blocks - self.state.batch.pool.free_blocks

    @property
    def admitted_tokens(self) -> int:
        """Tokens known of all sequences that were admitted so far, which have thereby left the queue."""
        return self.state.batch.admitted_tokens

    def cached_tokens(self, names: Iterable[bytes], partial: Callable[[int], Series[PartialBlock]]) -> float:
        """Tokens of a prompt that need not be computed, from the head on.

        `names`: of its full blocks, taken up to the first that is not cached. `partial`: gives the partial
        blocks that it could begin with behind some of them, the longest first.

        A block on the host counts less, by the tokens that could be computed while it is brought back. So a
        worker that has a block on its device is preferred to one that has it on its host, and both to one
        without it.
        """
        pool = self.state.batch.pool
        hits = pool.match(names)
        longest = next((each.end for each in partial(len(hits)) if pool.knows(each.name)), 0)
        tokens = max(longest, len(hits) * self.limits.block_size)
        on_host = hits.count(ON_HOST)
        return tokens - on_host * self.limits.swap_tokens if on_host else tokens

    def submit(self, group: SequenceGroup) -> None:
        """Take on a group whose limit is set and fits this worker, and that no other scheduler has."""
        group.take_up(self.state.policy.measure(group))
        beams.start(group)
        self.state.enter(group)
        samples.submit(self.state, group)

    def plan(self) -> StepPlan | None:
        """The next step, or None if there is nothing to do until a result or a request comes; but see
        `plan_again`."""
        self.plan_again = False
        if self.paused:
            return None
        step = plan_step(self.state, self.step + 1, at_rest=not self.flights)
        # When the batch comes to rest, a plan without rows hands back the last slots.
        if step.empty and (self.flights or not step.freed_slots):
            self.state.batch.freed_slots.extend(step.freed_slots)
            self.plan_again = not step.may_name
            return None
        self.step += 1
        plan, epochs = step.finish(), [sequence.epoch for sequence in step.sequences]
        self.flights.append(
            Flight(plan, step.sequences, epochs, step.embedded, step.searches, step.named_blocks)
        )
        return plan

    def check(self, result: StepResult) -> None:
        """Raise `WorkerFault` unless this answers the oldest plan in flight. Nothing changes."""
        if not self.flights:
            raise WorkerFault(f"a result of step {result.step} with no plan in flight")
        self.flights[0].check(result, self.limits.vocab_size, self.limits.embedding_size)

    def settle(self, result: StepResult) -> Outcome:
        """Take in the answer to the oldest plan in flight, which `check` has found in order."""
        return settle(self.state, self.flights.popleft(), result)

    def complete(self, result: StepResult) -> Outcome:
        """Check and settle a result. Raises `WorkerFault` before anything has changed."""
        self.check(result)
        return self.settle(result)

    def compiled(self, grammar: int) -> None:
        """The worker has compiled the grammar of this number: its sequences may sample from now on."""
        self.state.batch.grammars.compiled(grammar)

    def seen(self, sight: int) -> None:
        """The worker has seen the images of this number: rows may compute their tokens from now on."""
        self.state.batch.sights.seen(sight)

    def cancel(self, group: SequenceGroup) -> None:
        """End all of a group at once; its slots and blocks are free from now on."""
        self.state.cancel(group)

    def end_sequence(self, group: SequenceGroup, index: int) -> None:
        """End one sequence. Nothing happens if it has ended already."""
        sequence = group.sequences[index]
        if sequence.state is not State.DONE:
            self.state.end(sequence)

    def suspects(self, loss: Loss) -> dict[SequenceGroup, dict[int, Span]]:
        """The groups that may be the reason for the worker's loss, and where each of their sequences was.

        They had a row in flight, or the worker compiled their grammar or looked at their images. To be called
        before `evacuate`.
        """
        found: dict[SequenceGroup, dict[int, Span]] = {}
        if loss is not Loss.OUTSIDE:
            for flight in self.flights:
                rows = flight.plan.rows
                for sequence, start, count in zip(flight.sequences, rows.starts, rows.counts, strict=True):
                    if sequence.group in self.state.groups:
                        spans, start = found.setdefault(sequence.group, {}), start + sequence.dropped_tokens
                        first, end = spans.get(sequence.index, (start, start))
                        spans[sequence.index] = min(first, start), max(end, start + count)
            for sequence in self.state.awaiting_worker():
                end = sequence.dropped_tokens + len(sequence.tokens)
                first, _ = found.setdefault(sequence.group, {}).get(sequence.index, (end - 1, end))
                found[sequence.group][sequence.index] = first, end
        return found

    def evacuate(self) -> list[SequenceGroup]:
        """Hand back all unfinished groups, oldest first, with their tokens.

        The worker is lost, and the scheduler must not be used afterwards; or it is at rest, with nothing in
        flight, and may go on with other groups or the same.
        """
        state = self.state
        groups = sorted(state.groups, key=lambda group: group.arrival)
        for group in groups:
            state.withdraw(group)
        self.flights.clear()
        state.forks.clear()
        state.waiting.drain()
        return groups

    def withdraw_waiting(self, share: float) -> list[SequenceGroup]:
        """Hand back groups that hold no slot, oldest first: another worker may take them sooner.

        `share`: of all that wait, those that have waited longest."""
        state, withdrawn = self.state, list[SequenceGroup]()
        state.unfinished.drain()
        waiting = state.waiting.drain()
        for sequence in waiting:
            group = sequence.group
            if group not in state.groups:  # withdrawn with an older sibling
                continue
            if len(withdrawn) >= share * len(waiting) or any(
                each.table is not None or each.state is State.FORK for each in group.alive()
            ):
                state.waiting.push(sequence)
            else:
                withdrawn.append(group)
                state.withdraw(group)
        return withdrawn

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if the state contradicts itself."""
        check_integrity(self.state, self.flights)
