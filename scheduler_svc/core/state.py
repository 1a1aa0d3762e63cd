"""What the phases of one worker's steps share: who waits, who runs, and who forks in the next step."""

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.blocks import NamedBlock
from scheduler_svc.core.drafters import Speculation
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import Fork
from scheduler_svc.core.policies import Policy
from scheduler_svc.core.prefill_budget import PrefillBudget
from scheduler_svc.core.prefix import extend_chain, root
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.core.shares import Shares
from scheduler_svc.core.unfinished import UnfinishedPrefixes
from scheduler_svc.core.waiting import WaitingQueue

AHEAD = 1024
"""Blocks behind the computed ones that have names, too. A prompt of 100,000 tokens has 6,250. To name all of
them when it comes, and to note who computes them, takes 8 ms, for which every other request waits."""


class SchedulerState:
    """The requests of one worker, and what is known of the worker."""

    def __init__(
        self,
        limits: WorkerLimits,
        slots: int,
        policy: Policy,
        speculation: Speculation | None,
        step_seconds: float | None,
    ) -> None:
        """`limits`: its `max_step_tokens` is the token budget of a step. `slots`: rows of the batch.
        `step_seconds`: what a step with decodes should take; None: as `prefill_budget.py` says."""
        self.limits = limits
        self.policy = policy
        self.speculation = speculation
        """Where drafts come from; None: from nowhere."""
        self.shares = Shares(limits.max_step_tokens)
        self.waiting = WaitingQueue(policy.queue, self.shares.tenants)
        self.unfinished = UnfinishedPrefixes(self.waiting)
        self.batch = Batch(limits, slots, self.unfinished, self.shares)
        self.groups: dict[SequenceGroup, None] = {}
        """All groups that have not ended, whether they wait or run."""
        self.short_of_blocks = False
        """In the last plan the first that waits found too few blocks."""
        self.refused: tuple[Sequence, int] | None = None
        """The first that waits, if it found too few blocks in this plan, and how many were free then."""
        self.made_room = False
        """In the last plan decodes left room for an image; see `whole_images.py`."""
        self.forks: list[Fork] = []
        """To be done in the next step."""
        self.ended_answers: dict[Sequence, NamedBlock] = {}
        """Last blocks of answers of which a row is still in flight; see `partial_blocks.py`."""
        self.prefill_budget = PrefillBudget(step_seconds)

    def enter(self, group: SequenceGroup) -> None:
        """Take in a group that this worker gets."""
        self.groups[group] = None
        self.shares.enter(group)

    def awaiting_worker(self) -> list[Sequence]:
        """The running sequences that cannot go on to their ends yet, because the worker compiles their
        grammars or looks at their images."""
        ready = self.batch.grammars.ready
        return [
            sequence
            for sequence in self.batch.running
            if sequence.sight or not ready(sequence.group.request.grammar)
        ]

    def in_order(self) -> list[Sequence]:
        """The running sequences in the order in which they get blocks: the older before the younger."""
        return self.shares.order(self.batch.running)

    def urgency(self, sequence: Sequence) -> tuple[float, ...]:
        """How early a sequence computes its known tokens: as early as any that waits for its prefix."""
        followers = self.unfinished.followers_of(sequence)
        return min(map(self.shares.urgency, (sequence, *followers)))

    def name_blocks(self, sequence: Sequence) -> None:
        """Enter the sequence's blocks that have been filled into the cache."""
        full, before = sequence.computed // self.limits.block_size, len(sequence.chain)
        named = self.name_ahead(sequence, full)
        assert sequence.table is not None
        sequence.table.cache(sequence.chain, full)
        if named > full and self.unfinished.makes(sequence):
            self.unfinished.begin(sequence, max(before, full), named)
        self.unfinished.reached(sequence, full)

    def name_ahead(self, sequence: Sequence, full: int) -> int:
        """Name the first `full` blocks of the sequence, and `AHEAD` more that its known tokens fill.

        The block of the last token is not among these. Returns how many blocks have names.
        """
        block_size, chain = self.limits.block_size, sequence.chain
        known = (len(sequence.tokens) - 1) // block_size
        named = max(full, min(known, max(full + AHEAD, len(chain))))
        request = sequence.group.request
        start = root(request.salt, request.adapter)
        extend_chain(chain, start, sequence.tokens, named, block_size, request.images)
        return named

    def end(self, sequence: Sequence) -> None:
        """Take the sequence out for good. If it led its group's prompt, the next one leads."""
        group = sequence.group
        self.batch.leave(sequence, State.DONE)
        group.unfinished -= 1
        if not group.unfinished:
            self._let_go(group)
        elif (leader := group.leader_after(sequence)) is not None:
            self.waiting.push(leader)

    def cancel(self, group: SequenceGroup) -> None:
        """End all of a group at once; its slots and blocks are free from now on."""
        group.held.clear()
        for sequence in group.alive():
            self.end(sequence)

    def withdraw(self, group: SequenceGroup) -> None:
        """Take a group out without ending it, for another worker."""
        for sequence in group.alive():
            if sequence.state is not State.WAITING:
                self.batch.leave(sequence, State.WAITING)
            sequence.chain = []  # the next worker's blocks may have another size
            sequence.reached = 0
        group.held.clear()
        self._let_go(group)

    def _let_go(self, group: SequenceGroup) -> None:
        del self.groups[group]
        self.shares.leave(group)
        if not group.account.requests:
            self.waiting.leave(group.account)
