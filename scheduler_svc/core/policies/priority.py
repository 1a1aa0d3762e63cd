"""Requests in the order of their priorities."""

from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import SequenceGroup


class Priority(Policy):
    """Lower numbers come first, and preempt higher ones. Equal numbers are first come, first served.

    The order is strict: higher numbers of a user wait for as long as lower ones of that user keep coming.
    """

    preempts = True

    def measure(self, group: SequenceGroup) -> float:
        return group.request.priority
