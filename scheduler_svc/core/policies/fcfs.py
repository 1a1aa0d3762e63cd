"""First come, first served."""

from scheduler_svc.core.policies.policy import Policy


class FirstCome(Policy):
    """No request of a user overtakes another one of the same user."""
