"""Shortest job first, by the length that an answer may have."""

from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import SequenceGroup


class Shortest(Policy):
    """Fewer tokens, prompt and answer together, begin earlier; nobody who runs is preempted for it.

    Requests age: each later arrival counts as a token. So a request is overtaken by at most as many later
    ones as it may become longer than they, and nobody starves.
    """

    def measure(self, group: SequenceGroup) -> float:
        return group.limit + group.arrival
