"""Which worker a request goes to."""

from collections.abc import Iterable

from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup


def choose(schedulers: Iterable[Scheduler], group: SequenceGroup) -> Scheduler | None:
    """The least loaded of those that could hold the group's longest sequence; the first on a tie."""
    able = [each for each in schedulers if group.limit <= each.limits.max_length]
    return min(able, key=lambda each: each.unfinished / each.slots, default=None)
