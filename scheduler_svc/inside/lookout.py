"""What one who looks inside is told of a scheduler and all of its workers."""

import itertools
from collections.abc import Mapping
from typing import Self

from proto.inside_pb2 import Look, Totals
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.inside.worker_changes import MOST_NUMBERS, WorkerChanges
from scheduler_svc.measures import Measures
from scheduler_svc.step_log import StepLog
from scheduler_svc.worker_link import WorkerLink


class Lookout:
    """Looks at a scheduler for one who watches, from entering it until leaving it."""

    def __init__(
        self, scheduler_id: str, fleet: Fleet, links: Mapping[Scheduler, WorkerLink], measures: Measures
    ) -> None:
        """`links`: the workers, which come and go."""
        self._id = scheduler_id
        self._fleet, self._links, self._measures = fleet, links, measures
        self._watched: dict[WorkerLink, _Worker] = {}
        self._numbers = itertools.count(1)
        self._totals: Totals | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._watched.values():
            worker.close()

    def look(self) -> Look | None:
        """What has changed since the last look, at the first look everything, or as much of it as fits into a
        message. None if nothing has."""
        look = Look(scheduler=self._id)
        links = dict.fromkeys(self._links.values())
        for link in self._watched.keys() - links.keys():
            worker = self._watched.pop(link)
            worker.close()
            look.lost.append(worker.number)
        for link in links:
            if link not in self._watched:
                self._watched[link] = _Worker(next(self._numbers), link)
            self._watched[link].look(look, MOST_NUMBERS // len(links))
        totals = self._now()
        if totals == self._totals and not (look.workers or look.lost):
            return None
        self._totals = totals
        look.totals.CopyFrom(totals)
        return look

    def _now(self) -> Totals:
        measures = self._measures
        return Totals(
            prompt_tokens=int(measures.queries.value),
            cached_tokens=int(measures.hits.value),
            preemptions=int(measures.preemptions.value),
            drafts=int(measures.drafts.value),
            drafts_held=int(measures.drafts_held.value),
            waiting=self._fleet.waiting().requests,
        )


class _Worker:
    """One worker that is watched: its memory and its steps."""

    def __init__(self, number: int, link: WorkerLink) -> None:
        self.number = number
        scheduler = link.scheduler
        self._changes = WorkerChanges(number, scheduler)
        self._logs = link.step_logs
        self._steps = StepLog(scheduler.limits.max_step_tokens, scheduler.state.prefill_budget)
        self._logs.append(self._steps)

    def look(self, look: Look, room: int) -> None:
        """Add what has changed. `room`: see `WorkerChanges.look`."""
        change, steps = self._changes.look(room), self._steps.take()
        if change is not None:
            look.workers.append(change)
        if steps:
            if change is None:
                look.workers.add(number=self.number, host_used=self._changes.host_used)
            look.workers[-1].steps.extend(steps)

    def close(self) -> None:
        self._changes.close()
        self._logs.remove(self._steps)
