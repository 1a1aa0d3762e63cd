"""Shortest job first, by the length that an answer may have."""

from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import SequenceGroup


class Shortest(Policy):
    """Requests with fewer tokens, prompt and answer together, begin earlier; none preempts another.

    Each arrival counts as one token. So if a request may become k tokens longer than others, at most k of
    those that come later overtake it, and none starves.
    """

    def measure(self, group: SequenceGroup) -> float:
        return group.limit + group.arrival
