"""The scheduler of one worker: takes requests, makes plans, understands results.

    submit ─▶ waiting ─▶ plan() ─▶ in flight ─▶ complete() ─▶ gains

`plan` may be called again before `complete`: a sequence's next row then uses a token that is still in
flight and that the worker finds in its own slot. One plan in flight at most is the lock-step loop;
more is the same loop planned ahead, and gives every request the same tokens.

What planning ahead cannot know is whether a token in flight ends its sequence. If it does, one row
was computed in vain; the sequence's epoch has moved on by then, so its result is dropped.
"""

from collections import abc, deque
from collections.abc import Iterable
from dataclasses import replace

from scheduler_svc.core import stretch
from scheduler_svc.core.batch import Batch
from scheduler_svc.core.beams import Beams
from scheduler_svc.core.blocks import ON_HOST
from scheduler_svc.core.drafting import Speculation, counting, kept
from scheduler_svc.core.errors import IntegrityError, RowFailed, WorkerFault
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import Fork, Gain, Outcome, StepPlan, StepResult
from scheduler_svc.core.planner import Planner
from scheduler_svc.core.policies import Policy
from scheduler_svc.core.policies.fcfs import FirstCome
from scheduler_svc.core.prefix import extend_chain, root
from scheduler_svc.core.request import Finish
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.core.stretch import Flight
from scheduler_svc.core.unfinished import UnfinishedPrefixes


class Scheduler:
    """Decides for one worker. Deterministic: the same calls give the same plans."""

    def __init__(
        self,
        limits: WorkerLimits,
        token_budget: int,
        policy: Policy | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        """`token_budget`: tokens that a step may compute; the worker may allow fewer."""
        budget = min(token_budget, limits.max_step_tokens)
        self.limits = limits = replace(limits, max_step_tokens=budget)
        # With no more slots than tokens in a step, decodes can never shut out all prefills.
        self.slots = min(limits.max_slots, budget)
        self._policy = policy or FirstCome()
        self._waiting = self._policy.queue()
        self._unfinished = UnfinishedPrefixes(self._waiting)
        self._batch = Batch(limits, self.slots, self._unfinished)
        self._speculates = speculation is not None
        self._planner = Planner(self._batch, self._waiting, self._policy, budget, speculation)
        self._groups: dict[SequenceGroup, None] = {}
        self._flights: deque[Flight] = deque()
        self._step = 0

    @property
    def in_flight(self) -> int:
        """Plans that have not been answered yet."""
        return len(self._flights)

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is in flight."""
        return not (self._groups or self._flights)

    @property
    def unfinished(self) -> int:
        """Requests that have not ended."""
        return len(self._groups)

    @property
    def held_blocks(self) -> int:
        """Blocks that running sequences hold."""
        return self.limits.num_blocks - self._batch.pool.free_blocks

    @property
    def admitted_tokens(self) -> int:
        """Prompt tokens, and output computed anew, that have begun here: the line moves on by them."""
        return self._batch.admitted_tokens

    def cached_tokens(self, names: list[bytes]) -> float:
        """How many tokens of a prompt need not be computed, from the head on.

        What is on the host counts less by as many as could be computed while it is brought back: another
        worker that has it on its device is to be preferred, but not one that has it not at all.
        """
        hits = self._batch.pool.match(names)
        tokens = len(hits) * self.limits.block_size
        on_host = hits.count(ON_HOST)
        return tokens - on_host * self.limits.swap_tokens if on_host else tokens

    def line(self) -> list[Sequence]:
        """The sequences that wait and have no free slot to look forward to."""
        held = (sibling for group in self._groups for sibling in group.held)
        waiting = sorted(
            [*self._waiting.sequences(), *self._unfinished.followers(), *held],
            key=lambda sequence: sequence.age,
        )
        return waiting[len(self._batch.free_slots) :]

    def submit(self, group: SequenceGroup) -> None:
        """Take on a group whose limit is set and fits this worker; it is in nobody else's hands."""
        group.gained = False
        group.take_up(self._policy.measure(group))
        if group.request.beams is not None:
            group.beams = group.beams or Beams(group)
            group.beams.restart()
        self._groups[group] = None
        leader, *siblings = group.alive()
        self._waiting.push(leader)
        if any(sequence.dropped_tokens for sequence in group.alive()):  # their prompts are not one any more
            for sibling in siblings:
                self._waiting.push(sibling)
        else:
            group.held = siblings

    def plan(self) -> StepPlan | None:
        """The next step, or None if there is nothing to do until a result or a request comes."""
        builder = self._planner.fill(self._step + 1, at_rest=not self._flights)
        # When the batch comes to rest, a plan without rows hands back the last slots.
        if not builder.sequences and (self._flights or not builder.freed_slots):
            self._batch.freed_slots.extend(builder.freed_slots)
            return None
        self._step += 1
        plan, sequences = builder.finish(), builder.sequences
        epochs = [sequence.epoch for sequence in sequences]
        self._flights.append(Flight(plan, sequences, epochs, builder.embedded))
        return plan

    def complete(self, result: StepResult) -> Outcome:
        """What the answer to the oldest plan in flight means. Raises `WorkerFault` if it is none."""
        flight = self._answered(result)
        outcome = Outcome()
        for row, message in result.errors.items():
            sequence = flight.sequences[row]
            if sequence.epoch == flight.epochs[row]:
                outcome.failed.append((sequence.group, RowFailed(message)))
                self.cancel(sequence.group)
        self._flights.popleft()
        self._batch.pool.release(flight.plan.copies.sources)
        plan, gains, tokens, end = flight.plan, outcome.gains, result.tokens, 0
        self._planner.pace.learn(sum(count for count in plan.rows.counts if count > 1), result.duration_us)
        block_size, window = self.limits.block_size, self.limits.window
        searching = dict[SequenceGroup, Beams]()
        rows = zip(flight.sequences, flight.epochs, plan.rows.counts, plan.rows.samples, strict=True)
        for sequence, epoch, count, samples in rows:
            end += samples
            if sequence.epoch != epoch:
                continue
            if samples > 1:
                gains += self._verified(sequence, tokens, end - samples, end)
                continue
            sequence.computed += count
            table = sequence.table
            assert table is not None
            if sequence.computed // block_size > table.named:
                self._cache(sequence)
            if window:
                table.drop(self.limits.outside_window(sequence.computed))
            group = sequence.group
            if group.held and sequence.computed >= len(group.request.prompt):
                self._fork_siblings(group, sequence)
            if samples and group.beams is not None:
                # What was planned before it took over from another says nothing of it now.
                if sequence.computed == len(sequence.tokens) and group.beams.report(
                    sequence, list(result.candidates.get(end - 1, ()))
                ):
                    searching[group] = group.beams
            elif samples:
                sequence.tokens.append(tokens[end - 1])
                group.gained = True
                finish = sequence.ending()
                self._go_on(sequence, finish)
                gains.append(Gain(group, sequence.index, tokens[end - 1], finish, end - 1))
        for row in flight.embedded:
            sequence = flight.sequences[row]
            if sequence.epoch == flight.epochs[row]:
                outcome.embedded.append((sequence.group, result.embeddings[row]))
                self._end(sequence)
        self._policy.gained(gains)
        for group, beams in searching.items():
            self._next_round(group, beams, outcome)
        return outcome

    def stretch(self) -> int:
        """How many steps that are all alike come now, if no request comes; at least so many do."""
        if self._speculates or not self._policy.steady or self._waiting.peek():
            return 0
        return stretch.longest(self._batch, self._flights)

    def advance(self, steps: int) -> Iterable[Sequence]:
        """What so many turns of `complete` and `plan` do, `stretch` at most; whose rows they were.

        A request may have been submitted meanwhile, as it may while plans are in flight.
        """
        self._flights = deque(stretch.advance(self._batch, self._flights, steps, self._cache))
        self._step += steps
        return self._flights[0].sequences

    def cancel(self, group: SequenceGroup) -> None:
        """End all of a group at once; its slots and blocks are free from now on."""
        group.held.clear()
        for sequence in group.alive():
            self._end(sequence)

    def end_sequence(self, group: SequenceGroup, index: int) -> None:
        """End one sequence that is wanted no longer. Nothing happens if it has ended already."""
        sequence = group.sequences[index]
        if sequence.state is not State.DONE:
            self._end(sequence)

    def evacuate(self) -> list[SequenceGroup]:
        """The worker is lost: hand back all unfinished groups, oldest first, with what they know.

        The scheduler is of no use afterwards.
        """
        touched = {
            sequence.group
            for flight in self._flights
            for sequence, epoch in zip(flight.sequences, flight.epochs, strict=True)
            if sequence.epoch == epoch
        }
        groups = sorted(self._groups, key=lambda group: group.arrival)
        for group in groups:
            if group in touched and not group.gained:
                group.fruitless += 1
            self._withdraw(group)
        self._flights.clear()
        self._waiting.drain()
        return groups

    def withdraw_waiting(self) -> list[SequenceGroup]:
        """Hand back the groups that hold no slot, oldest first: another worker may take them sooner."""
        withdrawn = []
        self._unfinished.drain()
        for sequence in self._waiting.drain():
            group = sequence.group
            if group not in self._groups:  # withdrawn with an older sibling
                continue
            if any(each.table is not None or each.state is State.FORK for each in group.alive()):
                self._waiting.push(sequence)
            else:
                withdrawn.append(group)
                self._withdraw(group)
        return withdrawn

    def check_integrity(self) -> None:
        """Raise `IntegrityError` if the books do not balance; see `Batch` and `BlockPool`."""
        self._batch.check_integrity(block for flight in self._flights for block in flight.plan.copies.sources)
        running = {id(sequence) for sequence in self._batch.running}
        for group in self._groups:
            alive = group.alive()
            if len(alive) != group.unfinished or not alive:
                raise IntegrityError(
                    f"{group.request.request_id}: {len(alive)} unfinished of {group.unfinished}"
                )
            running -= {id(sequence) for sequence in alive}
            for sequence in alive:
                if (sequence.state in (State.PREFILL, State.DECODE)) != (sequence.table is not None):
                    raise IntegrityError(f"{group.request.request_id}: {sequence.state.value} and its table")
        if running:
            raise IntegrityError(f"{len(running)} sequences run that belong to no request")
        waiting = {id(each) for each in [*self._waiting.sequences(), *self._unfinished.followers()]}
        due = {
            id(sequence)
            for group in self._groups
            for sequence in group.alive()
            if sequence.table is None and sequence.state is not State.FORK and sequence not in group.held
            if group.beams is None or sequence not in group.beams.parked
        }
        if waiting != due:
            raise IntegrityError(f"{len(waiting)} sequences wait where {len(due)} should")

    def _answered(self, result: StepResult) -> Flight:
        """The flight that the result answers."""
        if not self._flights:
            raise WorkerFault(f"a result of step {result.step} with no plan in flight")
        flight = self._flights[0]
        if result.step != flight.plan.step:
            raise WorkerFault(f"a result of step {result.step} where {flight.plan.step} was due")
        tokens, due = result.tokens, sum(flight.plan.rows.samples)
        if len(tokens) != due:
            raise WorkerFault(f"step {result.step}: {len(tokens)} tokens where {due} were due")
        if any(row >= len(flight.sequences) for row in result.errors):
            raise WorkerFault(f"step {result.step}: an error of a row that was not planned")
        if any(row not in result.embeddings and row not in result.errors for row in flight.embedded):
            raise WorkerFault(f"step {result.step}: an embedding is missing")
        if result.errors or flight.plan.draft_tokens:
            tokens = counting(result, flight.plan.rows.samples)
        if tokens and not (min(tokens) >= 0 and max(tokens) < self.limits.vocab_size):
            raise WorkerFault(f"step {result.step}: a token id outside the vocabulary")
        return flight

    def _verified(self, sequence: Sequence, tokens: abc.Sequence[int], begin: int, end: int) -> list[Gain]:
        """What a row with drafts, which sampled the tokens `begin` to `end` - 1 of a result, has brought."""
        group, gains = sequence.group, list[Gain]()
        run = tokens[begin:end]
        count = kept(run)
        for entry in range(begin, begin + count):
            sequence.tokens.append(tokens[entry])
            finish = sequence.ending()
            gains.append(Gain(group, sequence.index, tokens[entry], finish, entry))
            if finish:
                break
        group.gained = True
        group.drafts += len(run) - 1
        group.drafts_held += count - 1
        assert sequence.table is not None
        assert sequence.pace is not None
        sequence.pace.judge(len(run) - 1, count - 1, len(sequence.tokens))
        self._batch.roll_back(sequence)
        if sequence.computed // self.limits.block_size > sequence.table.named:
            self._cache(sequence)
        if self.limits.window:
            sequence.table.drop(self.limits.outside_window(sequence.computed))
        self._go_on(sequence, gains[-1].finish)
        return gains

    def _cache(self, sequence: Sequence) -> None:
        """Tell the cache of the blocks that were filled."""
        full, block_size = sequence.computed // self.limits.block_size, self.limits.block_size
        extend_chain(sequence.chain, root(sequence.group.request.salt), sequence.tokens, full, block_size)
        assert sequence.table is not None
        sequence.table.cache(sequence.chain, full)
        self._unfinished.reached(sequence, full)

    def _go_on(self, sequence: Sequence, finish: Finish) -> None:
        """After what may have been its last token; one that has filled its context begins anew with what it
        keeps."""
        if finish:
            self._end(sequence)
        elif sequence.group.request.rolling and len(sequence.tokens) >= sequence.group.limit:
            self._batch.leave(sequence, State.PREEMPTED)
            sequence.roll()
            self._waiting.push(sequence)

    def _end(self, sequence: Sequence) -> None:
        """Take the sequence out for good, and see who comes after it."""
        group = sequence.group
        self._batch.leave(sequence, State.DONE)
        group.unfinished -= 1
        if not group.unfinished:
            del self._groups[group]
        elif sequence in group.held:
            group.held.remove(sequence)
        elif group.held:
            # The leader ended before the prompt was computed: the next one leads.
            self._waiting.push(group.held.pop(0))

    def _next_round(self, group: SequenceGroup, beams: Beams, outcome: Outcome) -> None:
        """All beams of a round have been computed."""
        group.gained = True
        self._policy.gained(
            [Gain(group, beam.index, -1, Finish.NOT_FINISHED, -1) for beam in beams.sequences]
        )
        self._planner.forks += beams.advance(self._batch, self._waiting)
        if not beams.over:
            return
        for index, output in enumerate(beams.best()):
            stopped = output[-1] in group.request.stop_token_ids
            for token in output[:-1]:
                outcome.gains.append(Gain(group, index, token, Finish.NOT_FINISHED, -1))
            finish = Finish.STOP if stopped else Finish.LENGTH
            outcome.gains.append(Gain(group, index, output[-1], finish, -1))
        self.cancel(group)

    def _fork_siblings(self, group: SequenceGroup, leader: Sequence) -> None:
        """The prompt has been computed: the others go on from there.

        Each computes the prompt's last token again, to draw from what comes out of it.
        """
        for sibling in group.held:
            sibling.move(State.FORK)
            self._planner.forks.append(Fork(sibling, leader, len(group.request.prompt) - 1))
        group.held.clear()

    def _withdraw(self, group: SequenceGroup) -> None:
        """Take the group out without ending it."""
        if group.gained:
            group.fruitless = 0
        for sequence in group.alive():
            if sequence.state is not State.WAITING:
                self._batch.leave(sequence, State.WAITING)
            sequence.chain = []  # the blocks of the next worker may be of another size
        group.held.clear()
        del self._groups[group]
