"""First come, first served."""

from scheduler_svc.core.policies.policy import Policy


class FirstCome(Policy):
    """No request overtakes another, so none starves."""
