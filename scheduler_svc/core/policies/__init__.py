"""Policies by name: which requests of a user come first. `policy.py` says what a policy may decide."""

from collections.abc import Callable

from scheduler_svc.core.policies.block_count import BlockCount
from scheduler_svc.core.policies.deadline import Deadline
from scheduler_svc.core.policies.fcfs import FirstCome
from scheduler_svc.core.policies.policy import Policy
from scheduler_svc.core.policies.priority import Priority
from scheduler_svc.core.policies.round_robin import RoundRobin
from scheduler_svc.core.policies.shortest import Shortest

POLICIES: dict[str, Callable[[], Policy]] = {
    "fcfs": FirstCome,
    "priority": Priority,
    "shortest": Shortest,
    "round-robin": RoundRobin,
    "deadline": Deadline,
    "block-count": BlockCount,
}

__all__ = ["POLICIES", "Policy"]
