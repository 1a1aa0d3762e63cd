"""All workers, each with a scheduler of its own, and the requests that they share.

A request belongs to one worker at a time. It waits here while no worker can take it, and comes back here when
its worker is lost.

A request may be the reason why a worker is lost. One whose worker was lost before it gained a token there is
a suspect. Each worker gets one suspect at a time. So if that worker is lost, too, the suspect is the reason,
and only this request is ended.
"""

from collections import deque

from scheduler_svc.core.capabilities.roll import roll
from scheduler_svc.core.drafters import speculation_of
from scheduler_svc.core.errors import RequestPoisoned, RequestRefused
from scheduler_svc.core.limits import WorkerLimits, length_limit
from scheduler_svc.core.plan import Gain, Outcome
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.request import Request
from scheduler_svc.core.router import Router
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup, Watch

MAX_LOSSES = 2
"""Workers lost in a row, before a request gained a token on them, after which it is ended."""


class Fleet:
    """Takes on requests and workers, and decides which request goes to which worker."""

    def __init__(self, token_budget: int, policy: str = "fcfs", speculation: str = "off") -> None:
        """`policy`: one of `POLICIES`; `speculation`: off, or one of `DRAFTERS`."""
        self._token_budget = token_budget
        self._policy = POLICIES[policy]()
        self._speculation = speculation
        self.schedulers: list[Scheduler] = []
        self._router = Router()
        self._largest: WorkerLimits | None = None
        self._home: dict[SequenceGroup, Scheduler] = {}
        self._homeless: deque[SequenceGroup] = deque()
        self._suspects: deque[SequenceGroup] = deque()
        self._on_probation: dict[Scheduler, SequenceGroup] = {}
        self._arrivals = 0
        self._admitted_before = 0  # on workers that are lost

    @property
    def max_length(self) -> int:
        """Tokens, prompt and output, of the longest sequence that some worker can hold; 0 without workers."""
        return self._largest.max_length if self._largest else 0

    @property
    def admitted_tokens(self) -> int:
        """Tokens that have left the queue so far, over all workers; see `Scheduler.admitted_tokens`."""
        return self._admitted_before + sum(each.admitted_tokens for each in self.schedulers)

    def waiting(self) -> tuple[int, int]:
        """Requests that wait for others to make room, and their tokens that have to be computed."""
        waiting = [sequence for each in self.schedulers for sequence in each.waiting()]
        for group in (*self._homeless, *self._suspects):
            waiting += group.alive()
        requests = {id(sequence.group) for sequence in waiting}
        return len(requests), sum(len(sequence.tokens) for sequence in waiting)

    def accept(self, request: Request, watch: Watch | None = None) -> tuple[SequenceGroup, Outcome]:
        """Take on a request. The outcome says whether it is refused, or complete already."""
        self._arrivals += 1
        group = SequenceGroup(request, self._arrivals, watch)
        outcome = Outcome()
        if group.unfinished:
            self._place(group, outcome)
        return group, outcome

    def home(self, group: SequenceGroup) -> Scheduler | None:
        """The scheduler that has the request, if one has."""
        return self._home.get(group)

    def cancel(self, group: SequenceGroup) -> None:
        """End a request, wherever it is."""
        home = self._home.pop(group, None)
        if home is not None:
            home.cancel(group)
            self._review(home)
        for queue in (self._homeless, self._suspects):
            if group in queue:
                queue.remove(group)

    def end_sequence(self, group: SequenceGroup, index: int) -> None:
        """End one sequence of a request. Nothing happens if it has ended already."""
        home = self._home.get(group)
        if home is not None:
            home.end_sequence(group, index)
        else:
            group.end_waiting(index)
        if not group.unfinished:
            self.cancel(group)

    def add_worker(self, limits: WorkerLimits) -> tuple[Scheduler, Outcome]:
        """Add a worker. It takes the requests that had no worker, and its share of what waits for others."""
        waiting = list(self._homeless)
        self._homeless.clear()
        for scheduler in self.schedulers:
            for group in scheduler.withdraw_waiting():
                if self._on_probation.get(scheduler) is group:
                    del self._on_probation[scheduler]
                del self._home[group]
                waiting.append(group)
            self._router.review(scheduler)
        drafts = speculation_of(self._speculation, limits)
        joined = Scheduler(limits, self._token_budget, self._policy, drafts)
        self.schedulers.append(joined)
        self._router.add(joined)
        self._measure()
        outcome = Outcome()
        for group in sorted(waiting, key=lambda group: group.arrival):
            self._place(group, outcome)
        self._place_suspects()
        return joined, outcome

    def remove_worker(self, scheduler: Scheduler) -> Outcome:
        """A worker is lost: its requests go to other workers, or wait for one."""
        self.schedulers.remove(scheduler)
        self._router.remove(scheduler)
        self._admitted_before += scheduler.admitted_tokens
        self._measure()
        self._on_probation.pop(scheduler, None)
        outcome = Outcome()
        for group in scheduler.evacuate():
            del self._home[group]
            if group.losses >= MAX_LOSSES:
                outcome.failed.append((group, RequestPoisoned()))
            else:
                self._place(group, outcome)
        self._place_suspects()
        return outcome

    def settle(self, scheduler: Scheduler, outcome: Outcome) -> None:
        """Take note of a result's outcome: requests that ended, and whether a suspect gained a token."""
        for gain in outcome.gains:
            if gain.finish and not gain.group.unfinished:
                self._home.pop(gain.group, None)
        for group, _ in (*outcome.failed, *outcome.embedded):
            self._home.pop(group, None)
        self._review(scheduler)

    def _measure(self) -> None:
        """Note the limits of the largest worker."""
        limits = (each.limits for each in self.schedulers)
        self._largest = max(limits, key=lambda each: each.max_length, default=None)

    def _largest_for(self, request: Request) -> WorkerLimits | None:
        """Limits of the worker that can hold the request's longest sequences; beams must fit together."""
        if request.beams is None:
            return self._largest
        limits = (each.limits for each in self.schedulers)
        return max(limits, key=lambda each: each.max_length_of(request.beam_width), default=None)

    def _place(self, group: SequenceGroup, outcome: Outcome) -> None:
        """Give the group to a worker, or keep it until some worker can take it."""
        largest = self._largest_for(group.request)
        if largest is None:
            self._homeless.append(group)
            return
        if not group.limit and not self._set_limit(group, largest, outcome):
            return
        if group.losses:
            self._suspects.append(group)
            return
        scheduler = self._router.choose(group)
        if scheduler is None:
            self._homeless.append(group)
            return
        self._submit(group, scheduler)

    def _submit(self, group: SequenceGroup, scheduler: Scheduler) -> None:
        self._home[group] = scheduler
        scheduler.submit(group)
        self._router.review(scheduler)

    def _set_limit(self, group: SequenceGroup, largest: WorkerLimits, outcome: Outcome) -> bool:
        """Set the group's limit by the largest worker. False if the group is refused or complete."""
        try:
            group.limit = length_limit(group.request, largest)
        except RequestRefused as refusal:
            outcome.failed.append((group, refusal))
            return False
        for sequence in group.alive():
            # The worker or scheduler before may have been lost after the last token and before it said so.
            if finish := sequence.ending():
                group.end_waiting(sequence.index)
                outcome.gains.append(Gain(group, sequence.index, -1, finish, -1))
            elif group.request.rolling:
                roll(sequence)
        return group.unfinished > 0

    def _review(self, scheduler: Scheduler) -> None:
        """Note the worker's load. If its suspect has gained a token or is gone, place the next suspects."""
        self._router.review(scheduler)
        suspect = self._on_probation.get(scheduler)
        if suspect is not None and (suspect.gained or self._home.get(suspect) is not scheduler):
            del self._on_probation[scheduler]
            self._place_suspects()

    def _place_suspects(self) -> None:
        """Give each worker that has no suspect the first one that fits."""
        for scheduler in self.schedulers:
            if scheduler in self._on_probation:
                continue
            for suspect in self._suspects:
                if scheduler.limits.can_hold(suspect.request, suspect.limit):
                    self._suspects.remove(suspect)
                    self._on_probation[scheduler] = suspect
                    self._submit(suspect, scheduler)
                    break
