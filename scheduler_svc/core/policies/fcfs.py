"""First come, first served."""

from scheduler_svc.core.policies.policy import Policy


class FirstCome(Policy):
    """Nobody starves: whoever waits is overtaken by nobody."""
