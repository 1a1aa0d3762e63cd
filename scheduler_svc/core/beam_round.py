"""Where a group's beam search stands, between the steps of its workers."""

from collections.abc import Sequence

from scheduler_svc.core.beam_search import Candidate, Search


class BeamRound:
    """The present round of a search. A beam is named by its sequence's index in the group."""

    __slots__ = ("beams", "parked", "reported", "search")

    def __init__(self, search: Search) -> None:
        self.search = search
        self.beams = [0]
        """The beams of this round, best first. A search begins with one."""
        self.reported: dict[int, Sequence[Candidate]] = {}
        """Beams that have been computed in this round, and what may follow them."""
        self.parked: list[int] = []
        """Beams that were preempted after they had reported."""

    def restart(self) -> None:
        """The group goes to another worker, where all beams of this round are computed again."""
        self.reported.clear()
        self.parked.clear()
