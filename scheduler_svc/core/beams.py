"""A beam search on paged memory: its beams are sequences of one group, which fork and end as it goes on.

    round n     a ── the       b ── a        c ── one          three slots, three tables
    best        a cat, a dog, b fox
    round n+1   a ── cat       b ── fox      c: ends, and forks from a:  a ── dog
                in place       in place      shares a's blocks, gets a copy of the unfilled last one

No beam can go on before all have been computed: a group that searches is not planned ahead. A beam that has
reported and is preempted waits for the next round before it waits for a slot, so that whoever gets a slot
brings the round to its end: however small the pool, it comes.
"""

from scheduler_svc.core.batch import Batch
from scheduler_svc.core.beam_search import Candidate, Continuation, Search
from scheduler_svc.core.plan import Fork
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.core.waiting import WaitingQueue


class Beams:
    """Which sequences are the beams of a group's search, and what follows them."""

    def __init__(self, group: SequenceGroup) -> None:
        """`group`: its request asks for beams, its limit is set."""
        request = group.request
        assert request.beams is not None
        self._group = group
        self._prompt = len(request.prompt)
        self._search = Search(request.beams, request.stop_token_ids, group.limit - self._prompt)
        self._reported: dict[Sequence, list[Candidate]] = {}
        self.parked: list[Sequence] = []
        """Beams that were preempted after they had reported."""
        self.sequences = list(group.sequences)
        """The beams of this round, best first."""

    @property
    def over(self) -> bool:
        """The search has come to its end."""
        return self._search.over

    def restart(self) -> None:
        """Another worker goes on: all beams of this round are computed again."""
        self._reported.clear()
        self.parked.clear()

    def park(self, beam: Sequence) -> bool:
        """A beam was preempted: whether it has to wait for the next round before it is given a slot again."""
        if beam in self._reported:
            self.parked.append(beam)
        return beam in self._reported

    def report(self, beam: Sequence, candidates: list[Candidate]) -> bool:
        """Take in what may follow a beam; whether all are there now."""
        self._reported[beam] = candidates
        return len(self._reported) == len(self.sequences)

    def advance(self, batch: Batch, waiting: WaitingQueue) -> list[Fork]:
        """Begin the next round, if there is one. Who has to fork for it, from whom."""
        outputs = [beam.tokens[self._prompt :] for beam in self.sequences]
        candidates = [self._reported.pop(beam) for beam in self.sequences]
        chosen = self._search.advance(outputs, candidates)
        parents, forks = self.sequences, list[Fork]()
        self.sequences = self._heirs(chosen)
        # First those who fork: they take what their parents know, and those are about to know more.
        for beam, (parent, token) in zip(self.sequences, chosen, strict=True):
            if beam is not parents[parent]:
                forks += self._take_over(beam, parents[parent], token, batch)
        for beam, (parent, token) in zip(self.sequences, chosen, strict=True):
            if beam is parents[parent]:
                beam.tokens.append(token)
        for beam in self.parked:
            waiting.push(beam)
        self.parked.clear()
        return forks

    def best(self) -> list[list[int]]:
        """The outputs that the request gets."""
        return [output.tolist() for output in self._search.best(self._group.request.n)]

    def _heirs(self, chosen: list[Continuation]) -> list[Sequence]:
        """The sequence of each beam of the next round: the parent's own for its best child."""
        parents = self.sequences
        staying = {parent for parent, _ in chosen}
        spare = [beam for number, beam in enumerate(parents) if number not in staying]
        heirs = []
        for parent, _ in chosen:
            if parent in staying:
                staying.remove(parent)
                heirs.append(parents[parent])
            else:
                heirs.append(spare.pop() if spare else self._group.add_sequence())
        return heirs

    def _take_over(self, beam: Sequence, parent: Sequence, token: int, batch: Batch) -> list[Fork]:
        """The beam goes on where the parent is, with `token`. The fork that this takes, if it is one.

        A beam that waits for a slot needs none: it begins with what is in the cache then.
        """
        known = len(parent.tokens)
        if beam.table is not None:
            batch.leave(beam, State.FORK)
        beam.tokens = parent.tokens[:]
        beam.tokens.append(token)
        beam.chain = parent.chain[: known // batch.limits.block_size]
        return [Fork(beam, parent, known)] if beam.state is State.FORK else []
