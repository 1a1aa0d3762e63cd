"""All workers, each with a scheduler of its own, and the requests that they share.

A request belongs to one worker at a time. It waits here while no worker can take it, and comes back here when
its worker is lost.

A request may be the reason why a worker is lost: see `suspicion.py`. Suspects go on one at a time, each alone
on a worker that is set aside for them:

    comes to rest     nothing is planned until nothing is in flight
    is cleared        all other requests of the worker are held, and lose slots and blocks
    a suspect runs    alone, until it has passed the place where a worker was lost
    ... the next suspect, in the same way
    is given back     the requests that were held go on

Idle workers are set aside for suspects first. If there is none, one busy worker is, until an idle one comes.
So other requests go on elsewhere, and new ones go there.
"""

from collections.abc import Callable, Iterable

from scheduler_svc.core.backlog import Backlog, Waiting
from scheduler_svc.core.capabilities.roll import roll
from scheduler_svc.core.drafters import speculation_of
from scheduler_svc.core.errors import RequestPoisoned, RequestRefused, StepRaised
from scheduler_svc.core.isolation import Isolation
from scheduler_svc.core.limits import WorkerLimits, length_limit
from scheduler_svc.core.plan import Gain, Outcome
from scheduler_svc.core.policies import POLICIES
from scheduler_svc.core.request import Request
from scheduler_svc.core.router import Router
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import SequenceGroup, Watch
from scheduler_svc.core.suspicion import MAX_DEATHS, Loss


class Fleet:
    """Takes on requests and workers, and decides which request goes to which worker."""

    def __init__(
        self,
        token_budget: int,
        policy: str = "fcfs",
        speculation: str = "off",
        step_seconds: float | None = None,
        make: Callable[..., Scheduler] = Scheduler,
    ) -> None:
        """`policy`: one of `POLICIES`; `speculation`: off, or one of `DRAFTERS`; `step_seconds`: what a step
        with decodes should take; `make`: makes the scheduler of a worker."""
        self._token_budget = token_budget
        self._policy = POLICIES[policy]
        self._speculation = speculation
        self._step_seconds = step_seconds
        self._make = make
        self.schedulers: list[Scheduler] = []
        self._router = Router()
        self._largest: WorkerLimits | None = None
        self._home: dict[SequenceGroup, Scheduler] = {}
        # As dictionaries these let a group leave from anywhere in O(1).
        self._homeless: dict[SequenceGroup, None] = {}
        self._suspects: dict[SequenceGroup, None] = {}
        self._isolated: dict[Scheduler, Isolation] = {}
        self._backlog = Backlog(self._home)
        self._arrivals = 0
        self._admitted_before = 0  # on workers that are lost

    @property
    def max_length(self) -> int:
        """Tokens, prompt and output, of the longest sequence that some worker can hold; 0 without workers."""
        return self._largest.max_length if self._largest else 0

    @property
    def adapters(self) -> list[str]:
        """Names of the LoRA adapters that some worker has, sorted."""
        return sorted({name for each in self.schedulers for name in each.limits.adapters})

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of the answers that some worker goes on with, sorted."""
        limits = {each.limits for each in self.schedulers}  # most workers are alike
        return sorted({each.fingerprint_of(name) for each in limits for name in ("", *each.adapters)})

    @property
    def images(self) -> bool:
        """Whether some worker takes images."""
        return any(each.limits.images for each in self.schedulers)

    def adapters_asked_for(self) -> tuple[set[str], set[str]]:
        """LoRA adapters of requests that wait, and of those that run. Empty: the model alone."""
        running = {sequence.group for each in self.schedulers for sequence in each.state.batch.running}
        waiting = (group for group in (*self._home, *self._homeless, *self._suspects) if group not in running)
        return {each.request.adapter for each in waiting}, {each.request.adapter for each in running}

    @property
    def headless(self) -> bool:
        """Whether some worker has a model without a head."""
        return any(each.limits.headless for each in self.schedulers)

    @property
    def isolates(self) -> bool:
        """Whether some worker is set aside for suspects: a result of one may then move requests to others."""
        return bool(self._isolated)

    @property
    def admitted_tokens(self) -> int:
        """Tokens that have left the queue so far, over all workers; see `Scheduler.admitted_tokens`."""
        return self._admitted_before + sum(each.admitted_tokens for each in self.schedulers)

    def waiting(self) -> Waiting:
        """What waits for others to make room. To be asked again after each change."""
        return self._backlog.beyond(
            (each, each.room) for each in self.schedulers if each not in self._isolated
        )

    def accept(self, request: Request, watch: Watch | None = None) -> tuple[SequenceGroup, Outcome]:
        """Take on a request. The outcome says whether it is refused, or complete already."""
        self._arrivals += 1
        group = SequenceGroup(request, self._arrivals, self._backlog.watch(watch))
        outcome = Outcome()
        if group.unfinished:
            self._place(group, outcome)
        return group, outcome

    def stranded(self) -> list[SequenceGroup]:
        """Requests that no worker here goes on with: their answers were begun by one of another fingerprint,
        or by a larger one, or they are for an adapter that none here has, or have images, which none here
        takes."""
        limits = {each.limits for each in self.schedulers}  # most workers are alike
        waiting = [*self._homeless, *self._suspects] if limits else []
        return [
            group
            for group in waiting
            if not any(each.can_hold(group.request, group.limit, group.fingerprint) for each in limits)
        ]

    def home(self, group: SequenceGroup) -> Scheduler | None:
        """The scheduler that has the request, if one has."""
        return self._home.get(group)

    def cancel(self, group: SequenceGroup) -> None:
        """End a request, wherever it is."""
        home = self._home.get(group)
        if home is not None:
            home.cancel(group)
            del self._home[group]
            self._review(home)
            return
        self._backlog.leave(group)
        for queue in (self._homeless, self._suspects, *(each.held for each in self._isolated.values())):
            queue.pop(group, None)

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
        """Add a worker. It takes suspects, or the requests that had no worker and its share of what waits."""
        waiting = list(self._homeless)
        self._homeless.clear()
        share = self._share_of(limits)
        for scheduler in self.schedulers:
            if scheduler in self._isolated:
                continue
            for group in scheduler.withdraw_waiting(share):
                self._leave(group, scheduler)
                waiting.append(group)
            self._router.review(scheduler)
        drafts = speculation_of(self._speculation, limits)
        joined = self._make(limits, self._token_budget, self._policy(), drafts, self._step_seconds)
        self.schedulers.append(joined)
        self._router.add(joined)
        self._measure()
        outcome = Outcome()
        self._isolate()
        self._place_all(waiting, outcome)
        return joined, outcome

    def remove_worker(self, scheduler: Scheduler, loss: Loss = Loss.DEATH, why: str = "") -> Outcome:
        """A worker is lost: its requests go to other workers, or wait for one. `why`: its error's text."""
        self.schedulers.remove(scheduler)
        isolation = self._isolated.pop(scheduler, None)
        if isolation is None:
            isolation = Isolation(was_idle=False)
            self._router.remove(scheduler)
        self._admitted_before += scheduler.admitted_tokens
        self._measure()
        outcome, moved = Outcome(), list(isolation.held)
        places = scheduler.suspects(loss)
        for group in self._evacuated(scheduler):
            if group in places:
                group.suspicion = isolation.suspicion_of(group, places[group])
            if loss is Loss.RAISED and group in places and group is isolation.suspect:
                outcome.failed.append((group, StepRaised(why)))
            elif group.suspicion is not None and group.suspicion.deaths >= MAX_DEATHS:
                outcome.failed.append((group, RequestPoisoned()))
            else:
                moved.append(group)
        for group, _ in outcome.failed:
            self._backlog.leave(group)
        self._suspects.update(dict.fromkeys(group for group in moved if group.suspicion is not None))
        self._isolate()
        moved += self._homeless  # their limits may be those of the worker that is lost
        self._homeless.clear()
        self._place_all((group for group in moved if group.suspicion is None), outcome)
        return outcome

    def settle(self, scheduler: Scheduler, outcome: Outcome) -> None:
        """Take note of a result's outcome: requests that ended, and whether a suspect is cleared."""
        for gain in outcome.gains:
            if gain.finish and not gain.group.unfinished:
                self._home.pop(gain.group, None)
        for group, _ in (*outcome.failed, *outcome.embedded):
            self._home.pop(group, None)
        self._review(scheduler)

    def _share_of(self, joining: WorkerLimits) -> float:
        """Of what waits, how much is placed anew when a worker joins: all, if it may get longer there."""
        if joining.max_length > self.max_length:
            return 1.0
        slots = min(joining.max_slots, joining.max_step_tokens)
        return slots / (slots + sum(each.slots for each in self.schedulers))

    def _measure(self) -> None:
        """Note the limits of the largest worker."""
        limits = (each.limits for each in self.schedulers)
        self._largest = max(limits, key=lambda each: each.max_length, default=None)

    def _largest_for(self, group: SequenceGroup) -> WorkerLimits | None:
        """Limits of the worker that can hold the group's longest sequences; beams must fit together.

        It is one whose steps have room for the group's images, if there is any.
        """
        request, needs = group.request, group.needs
        if request.beams is None and not any(needs):
            return self._largest
        limits = (each.limits for each in self.schedulers if each.limits.goes_on(*needs))
        return max(
            limits,
            key=lambda each: (each.has_room_for_images(request), each.max_length_of(request.beam_width)),
            default=None,
        )

    def _place(self, group: SequenceGroup, outcome: Outcome) -> None:
        """Give the group to a worker, or keep it until some worker can take it."""
        largest = self._largest_for(group)
        if largest is None:
            self._homeless[group] = None
            return
        if not group.limit and not self._set_limit(group, largest, outcome):
            return
        self._fit_limit(group)
        self._assign(group)

    def _assign(self, group: SequenceGroup) -> None:
        """Give a group whose limit is set to a worker, or keep it until some worker takes it."""
        scheduler = self._router.choose(group)
        if scheduler is None:
            self._homeless[group] = None
        else:
            self._submit(group, scheduler)

    def _submit(self, group: SequenceGroup, scheduler: Scheduler) -> None:
        self._home[group] = scheduler
        self._backlog.count_on(scheduler, group.backlog_sequences)
        scheduler.submit(group)
        self._router.review(scheduler)

    def _set_limit(self, group: SequenceGroup, largest: WorkerLimits, outcome: Outcome) -> bool:
        """Set the group's limit by the largest worker. False if the group is refused or complete."""
        try:
            group.limit = length_limit(group.request, largest)
        except RequestRefused as refusal:
            outcome.failed.append((group, refusal))
            self._backlog.leave(group)
            return False
        for sequence in group.alive():
            # The worker or scheduler before may have been lost after the last token and before it said so.
            if finish := sequence.ending():
                group.end_waiting(sequence.index)
                outcome.gains.append(Gain(group, sequence.index, -1, finish, -1))
            elif group.request.rolling:
                roll(sequence)
                self._backlog.note(sequence)
        return group.unfinished > 0

    def _fit_limit(self, group: SequenceGroup) -> None:
        """Set the limit of a group anew by the largest worker that there is now. One that is started in place
        of a lost worker may have less memory, or a shorter context; and a larger one may come back.

        A request that asks for more tokens itself than the largest worker holds keeps its limit, and so does
        a group that already has more: both wait for a larger worker. The limit of a text that has left
        tokens behind never rises.
        """
        largest, request = self._largest_for(group), group.request
        if largest is None or request.pooling or not largest.has_room_for_images(request):
            return
        prompt, longest = len(request.prompt), largest.max_length_of(request.beam_width)
        asked = prompt + request.max_tokens if request.max_tokens else longest
        limit = min(asked, longest)
        if limit == group.limit or (request.max_tokens and group.limit == asked):
            return
        rolled = any(each.dropped_tokens for each in group.sequences)
        if all(len(each.tokens) < limit for each in group.alive()) and not (rolled and limit > group.limit):
            group.limit = limit
            if group.beam_round is not None:
                group.beam_round.search.most = limit - prompt

    def _evacuated(self, scheduler: Scheduler) -> list[SequenceGroup]:
        """The requests that a worker had."""
        groups = scheduler.evacuate()
        for group in groups:
            self._leave(group, scheduler)
        return groups

    def _leave(self, group: SequenceGroup, scheduler: Scheduler) -> None:
        """The group is handed back. If its answer has begun, only a worker like this one goes on with it."""
        del self._home[group]
        self._backlog.count_on(scheduler, -group.backlog_sequences)
        begun = group.request.scores_prompt and group.scored > 1
        if begun or any(sequence.output_tokens for sequence in group.sequences):
            group.fingerprint = scheduler.limits.fingerprint_of(group.request.adapter)

    def _place_all(self, groups: Iterable[SequenceGroup], outcome: Outcome) -> None:
        """Place groups, the oldest first."""
        for group in sorted(groups, key=lambda group: group.arrival):
            self._place(group, outcome)

    def _review(self, scheduler: Scheduler) -> None:
        """Note the worker's load, and go on with its suspects if it is set aside for some."""
        self._router.review(scheduler)
        if scheduler in self._isolated:
            self._attend(scheduler)

    # --- suspects ---

    def _isolate(self) -> None:
        """Set workers aside while suspects wait: each idle one, or else the least loaded if none is yet."""
        for group in self._suspects:
            self._fit_limit(group)
        free = [each for each in self.schedulers if each not in self._isolated]
        for scheduler in sorted(free, key=lambda each: each.unfinished / each.slots):
            if self._next_suspect(scheduler) and (scheduler.idle or not self._isolated):
                self._isolated[scheduler] = Isolation(scheduler.idle)
                self._router.remove(scheduler)
                self._attend(scheduler)
        for scheduler, isolation in list(self._isolated.items()):
            if not isolation.was_idle and isolation.suspect is None:
                self._attend(scheduler)

    def _attend(self, scheduler: Scheduler) -> None:
        """Let the next suspect run on a worker that is set aside, or give the worker back after the last."""
        isolation = self._isolated[scheduler]
        if (suspect := isolation.suspect) is not None:
            if self._home.get(suspect) is scheduler:
                assert suspect.suspicion is not None
                if not suspect.suspicion.refuted_by([each.computed_of_text for each in suspect.sequences]):
                    return
                suspect.suspicion = None
            isolation.suspect = None
        suspect = self._next_suspect(scheduler)
        spared = not isolation.was_idle and any(each.was_idle for each in self._isolated.values())
        if suspect is None or spared:
            self._give_back(scheduler)
            return
        scheduler.paused = True
        if scheduler.in_flight:
            return
        isolation.held.update(dict.fromkeys(self._evacuated(scheduler)))
        del self._suspects[suspect]
        isolation.suspect, isolation.outputs = suspect, [each.output_tokens for each in suspect.sequences]
        scheduler.paused = False
        self._submit(suspect, scheduler)

    def _give_back(self, scheduler: Scheduler) -> None:
        """No suspect waits for this worker any more: it takes all requests again."""
        isolation = self._isolated.pop(scheduler)
        scheduler.paused = False
        self._router.add(scheduler)
        for group in sorted(isolation.held, key=lambda group: group.arrival):
            self._submit(group, scheduler)
        homeless = list(self._homeless)
        self._homeless.clear()
        for group in homeless:
            self._assign(group)
        self._isolate()

    def _next_suspect(self, scheduler: Scheduler) -> SequenceGroup | None:
        """The first suspect that the worker can hold."""
        fits = scheduler.limits.can_hold
        return next((one for one in self._suspects if fits(one.request, one.limit, one.fingerprint)), None)
