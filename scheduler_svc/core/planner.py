"""Which rows run in the next step.

Decodes first, one token each; then chunks of the prefills that run; then, with what is left of the
budget, new admissions, but whoever is older than a prefill that runs is admitted before that gets its chunk.
Beside decodes the budget may be a smaller one (`pace.py`). Older before younger everywhere; who is older, and
whether one that waits may have one that runs make way for it beforehand, is the policy's to say.

When blocks run out, a sequence may preempt a younger one that has no row in this step yet: the one
that loses least (`loss.py`). Progress follows. The oldest running sequence can take the blocks of all others
and is never preempted; it stands still in a step only if others run instead, or are about to end. A
row in flight is lost only to an older sequence that runs in its place, so within as many steps as
there are sequences one of them gains for good, and every sequence is bounded in length.
"""

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.blocks import ON_HOST
from scheduler_svc.core.drafting import Speculation
from scheduler_svc.core.loss import loss
from scheduler_svc.core.pace import Pace
from scheduler_svc.core.plan import Fork, NewSlot
from scheduler_svc.core.policies import Policy
from scheduler_svc.core.prefix import extend_chain, root
from scheduler_svc.core.sequence import Age, Sequence, State
from scheduler_svc.core.step_builder import StepBuilder
from scheduler_svc.core.waiting import WaitingQueue
from scheduler_svc.core.way import making_way


class Planner:
    """Fills one step after the other from what runs and what waits."""

    def __init__(
        self,
        batch: Batch,
        waiting: WaitingQueue,
        policy: Policy,
        token_budget: int,
        speculation: Speculation | None,
    ) -> None:
        self._batch = batch
        self._waiting = waiting
        self._policy = policy
        self._token_budget = token_budget
        self._speculation = speculation
        self.pace = Pace()
        self.forks: list[Fork] = []
        """To be done in the next step."""
        self._watermark = batch.limits.watermark

    def fill(self, step: int, at_rest: bool) -> StepBuilder:
        """Plan a step: rows are taken up into the sequences' `planned`, blocks and slots are given out.

        `at_rest`: no other step is under way.
        """
        builder = self._fill(step)
        while at_rest and not builder.sequences and self._batch.running:
            # All that run hold memory that other beams of theirs need, and have nothing to do without them.
            self._preempt(max(self._batch.running, key=_use))
            self._batch.freed_slots.extend(builder.freed_slots)
            builder = self._fill(step)
        return builder

    def _fill(self, step: int) -> StepBuilder:
        builder = StepBuilder(step, self._token_budget)
        if (candidate := self._waiting.peek()) is not None:
            for sequence in making_way(self._batch, self._policy, candidate):
                self._preempt(sequence)
        self._decodes(builder)
        if builder.sequences:
            builder.budget = self.pace.beside_answers(builder.budget)
        prefills = [each for each in self._batch.running if each.state is State.PREFILL]
        prefills.sort(key=self._batch.unfinished.urgency)
        for sequence in self._policy.prefills(prefills):
            self._admissions(builder, self._batch.unfinished.urgency(sequence))
            if builder.budget and sequence.state is State.PREFILL:  # it may have been preempted meanwhile
                self._chunk(builder, sequence)
        self._do_forks(builder)
        self._admissions(builder)
        # Freed slots come first in a plan; the admissions above may have taken them again.
        builder.freed_slots.extend(self._batch.freed_slots)
        self._batch.freed_slots.clear()
        if builder.sequences:  # else no block was given out
            if self._batch.pool.host is not None:
                builder.swap(self._batch.pool.host.take_swaps())
            for sequence, length in self._batch.cut_tables.items():
                builder.cut_table(sequence.slot, length)
            self._batch.cut_tables.clear()
        return builder

    def _decodes(self, builder: StepBuilder) -> None:
        rows, decode = builder.sequences, State.DECODE
        stuck = False  # an older one found no block and nobody to preempt: nor will a younger one
        decodes = [each for each in self._batch.running if each.state is decode]
        longest = self._speculation.longest(len(decodes)) if self._speculation else 0
        under_way = longest > 0 and any(sequence.drafted for sequence in decodes)
        for sequence in decodes:
            position, group = sequence.planned, sequence.group
            # A row at p samples the token of p + 1. The last token needs no row of its own.
            if position + 2 > group.limit or sequence.state is not decode:
                continue
            if group.beams is not None and position == len(sequence.tokens):
                continue  # its next token is not chosen yet
            if len(rows) == self._token_budget:
                break
            if sequence.drafted or (longest > 0 and self._awaits_drafts(sequence, under_way)):
                continue
            table = sequence.table
            assert table is not None
            if position == table.room and (stuck or not self._grow(builder, sequence, 1)):
                stuck = True
                continue
            sequence.planned = position + 1
            rows.append(sequence)
            if group.beams is not None:
                _give(builder, sequence)
        builder.set_decodes(self._policy.decodes(rows))
        if longest > 0:
            self._speculate(builder, longest)

    def _awaits_drafts(self, sequence: Sequence, under_way: bool) -> bool:
        """Whether it is better planned when its token in flight is known, or when drafts of others that are
        `under_way` are back: two that come by turns would each have a step to themselves."""
        assert self._speculation is not None
        waits = under_way or sequence.planned >= len(sequence.tokens)
        return waits and bool(self._speculation.drafts(sequence, 1))

    def _speculate(self, builder: StepBuilder, longest: int) -> None:
        """Drafts for the decodes with nothing in flight. Nobody is preempted for them, and half of what the
        step has left is for prefills."""
        assert self._speculation is not None
        pool = self._batch.pool
        spare = builder.budget // 2
        for row, sequence in enumerate(builder.sequences):
            table, begin = sequence.table, sequence.planned
            assert table is not None
            count = min(longest, spare, sequence.group.limit - begin - 1)
            if begin != len(sequence.tokens) or count <= 0:
                continue
            tokens = self._speculation.drafts(sequence, count)
            missing = self._batch.limits.blocks_for(begin + len(tokens)) - len(table.blocks)
            if (growth := min(missing, pool.free_blocks - self._watermark)) > 0:
                self._grow(builder, sequence, growth)
            tokens = tokens[: table.room - begin]
            sequence.drafted = len(tokens)
            sequence.planned += len(tokens)
            builder.add_drafts(row, tokens)
            spare -= len(tokens)

    def _chunk(self, builder: StepBuilder, sequence: Sequence) -> None:
        """A row with as much of the known tokens as budget and blocks allow."""
        table = sequence.table
        assert table is not None
        start = sequence.planned
        count = min(len(sequence.tokens) - start, builder.budget)
        missing = self._batch.limits.blocks_for(start + count) - len(table.blocks)
        if missing > 0:
            # Only a sequence that could not move at all takes blocks from another: none whose own come back
            # from behind its window.
            stuck = start == table.room and not (self._batch.limits.window and sequence.computed < start)
            grown = self._grow(builder, sequence, missing, may_preempt=stuck)
            if not grown and start == table.room:
                return
            count = min(count, table.room - start)
        sequence.planned = start + count
        samples = sequence.planned == len(sequence.tokens)
        if samples:
            sequence.move(State.DECODE)
            if sequence.group.request.pooling:
                samples = False
                builder.embedded.append(len(builder.sequences))
        if sequence.group.beams is not None:
            _give(builder, sequence)
        builder.add_chunk(sequence, start, count, samples)

    def _do_forks(self, builder: StepBuilder) -> None:
        """Fork who is to; those for whom there is no room wait, and begin with what is in the cache then."""
        batch = self._batch
        for child, parent, tokens in self.forks:
            if child.state is not State.FORK:
                continue
            room = builder.budget and batch.free_slots and batch.pool.free_blocks > self._watermark
            if not (room and parent.computed >= tokens and batch.can_fork(parent, tokens)):
                child.move(State.WAITING)
                self._waiting.push(child)
                continue
            sources, targets = batch.fork(child, parent, tokens)
            builder.copy_blocks(sources, targets)
            new = NewSlot(
                child.slot,
                child.group.request,
                child.index,
                child.tokens[tokens:],
                targets,
                forked_from=parent.slot,
                forked_tokens=tokens,
            )
            builder.new_slots.append(new)
            builder.forked |= {child, parent}
            self._chunk(builder, child)
        self.forks.clear()

    def _admissions(self, builder: StepBuilder, before: Age | None = None) -> None:
        """Admit who waits, in order, while there is room; with `before`, those that are older than that."""
        batch, limits = self._batch, self._batch.limits
        while builder.budget and batch.free_slots:
            candidate = self._waiting.peek()
            if candidate is None or (before is not None and candidate.age > before):
                return
            hits, most = self._cached_prefix(candidate)
            if candidate.group.request.takes_prefixes and batch.unfinished.defer(candidate, len(hits), most):
                self._waiting.pop()
                continue
            seen = hits[limits.outside_window(len(hits) * limits.block_size) :]
            needed = limits.blocks_at_once(len(candidate.tokens)) - len(seen) + batch.pool.idle_among(seen)
            if needed + batch.reserved() > batch.pool.free_blocks:
                return
            sequence = self._waiting.pop()
            blocks = batch.admit(sequence, hits)
            if on_host := seen.count(ON_HOST):  # to bring them back takes a share of the step
                builder.budget = max(1, builder.budget - int(on_host * limits.swap_tokens))
            batch.unfinished.begin(sequence, len(hits), most)
            group = sequence.group
            if group.cached_tokens is None:
                group.cached_tokens = min(sequence.computed, len(group.request.prompt))
                self._policy.began(group)
            new = NewSlot(
                sequence.slot,
                group.request,
                sequence.index,
                sequence.tokens[:],
                blocks,
                dropped_tokens=sequence.dropped_tokens,
            )
            builder.new_slots.append(new)
            self._chunk(builder, sequence)

    def _cached_prefix(self, sequence: Sequence) -> tuple[list[int], int]:
        """Cached blocks that the sequence can begin with, see `BlockPool.match`, and how many at most.

        There must be something to compute: not the block of its last token.
        """
        block_size = self._batch.limits.block_size
        count = (len(sequence.tokens) - 1) // block_size
        extend_chain(sequence.chain, root(sequence.group.request.salt), sequence.tokens, count, block_size)
        names = sequence.chain[:count] if sequence.group.request.takes_prefixes else []
        return self._batch.pool.match(names), count

    def _grow(self, builder: StepBuilder, sequence: Sequence, wanted: int, may_preempt: bool = True) -> bool:
        """Give the sequence up to `wanted` blocks; False if it got none."""
        pool = self._batch.pool
        while not pool.free_blocks:
            if not (may_preempt and self._preempt_for(builder, sequence)):
                return False
        assert sequence.table is not None
        added = sequence.table.grow(min(wanted, pool.free_blocks))
        builder.append_blocks(sequence.slot, added)
        return True

    def _preempt_for(self, builder: StepBuilder, sequence: Sequence) -> bool:
        """Preempt the sequence that loses least by it; False if there is none that may be."""
        planned = builder.forked.union(builder.sequences)
        victims = [
            each
            for each in self._batch.running
            if each.age > sequence.age and each not in planned and not each.about_to_end
        ]
        if not victims:
            return False
        self._preempt(min(victims, key=self._loss))
        return True

    def _preempt(self, victim: Sequence) -> None:
        self._batch.leave(victim, State.PREEMPTED)
        if victim.group.beams is None or not victim.group.beams.park(victim):
            self._waiting.push(victim)

    def _loss(self, victim: Sequence) -> tuple[bool, float, float, Age]:
        """What preempting costs, see `loss`; the youngest on a tie.

        One that would free nothing comes last: it only helps once its sharers have gone too. If the policy
        preempts, those with the highest measure come first.
        """
        assert victim.table is not None
        frees = victim.table.own_blocks() > 0
        measure, arrival, index = victim.age
        rank = -measure if self._policy.preempts else 0.0
        return not frees, rank, loss(self._batch, victim), (-measure, -arrival, -index)


def _give(builder: StepBuilder, beam: Sequence) -> None:
    """Give the worker the tokens of a beam that were chosen since its last row."""
    for token in beam.tokens[beam.told :]:
        builder.give_token(beam.slot, token)
    beam.told = len(beam.tokens)


def _use(sequence: Sequence) -> tuple[bool, Age]:
    """Of those that run while nothing can be computed: a beam that waits for others is needed least."""
    return sequence.planned == len(sequence.tokens), sequence.age
