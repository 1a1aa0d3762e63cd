"""Earliest deadline first: Liu and Layland, Scheduling Algorithms for Multiprogramming (1973), section 7."""

from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import SequenceGroup


class Deadline(Policy):
    """A request preempts those with later deadlines. Requests without a deadline come last."""

    preempts = True

    def measure(self, group: SequenceGroup) -> float:
        return group.request.deadline
