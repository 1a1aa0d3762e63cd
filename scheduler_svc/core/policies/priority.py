"""By the number that a request came with."""

from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.sequence import SequenceGroup


class Priority(Policy):
    """Lower numbers first, and they preempt higher ones; equals are first come, first served.

    The order is strict, so higher numbers wait for as long as lower ones keep coming.
    """

    preempts = True

    def measure(self, group: SequenceGroup) -> float:
        return group.request.priority
