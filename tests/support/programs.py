"""Random programs of arrivals, cancels, early ends and losses of workers, and the world in which they play.

After every event the books must balance, every token that has been computed for a running sequence must be in
its worker's memory, at its block and offset, and every cached block, on the device and on the host, must hold
what its name says. In the end every request has exactly the tokens that it
gets alone, no block is leaked, and the worker has seen nothing that it could not trust.
"""

from array import array
from collections import Counter, defaultdict, deque
from dataclasses import replace
from math import inf
from random import Random
from types import SimpleNamespace
from typing import Any

from scheduler_svc.core.errors import RequestPoisoned, RequestRefused, RowFailed
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.images import Image
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.plan import Outcome, StepResult
from scheduler_svc.core.prefix import partial_names, root
from scheduler_svc.core.request import Pooling, Request, SoFar
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence, SequenceGroup

ADAPTERS = ("a", "b")
"""What every worker has."""


class World:
    """A fleet, its fake workers, and what every request has been given."""

    def __init__(
        self,
        fake: SimpleNamespace,
        limits: dict[str, int],
        depth: int,
        policy: str = "fcfs",
        speculation: str = "off",
        references: dict[tuple[str, int, int], list[int]] | None = None,
        sizes: Random | None = None,
    ) -> None:
        """`references`: of a program that several worlds play, what is known of its requests.

        `sizes`: draws what each worker has to offer, `limits` at most; None: all are alike.
        """
        self.fake, self.depth = fake, depth
        self.references = {} if references is None else references
        adapters = dict.fromkeys(ADAPTERS, "")
        self.limits = fake.limits(**limits, can_draft=True, adapters=adapters, images=True)
        self.sizes = sizes
        self.fleet = Fleet(1000, policy, speculation)
        self.workers: dict[Scheduler, tuple[object, deque[StepResult]]] = {}
        self.requests: dict[SequenceGroup, Request] = {}
        self.groups: dict[str, SequenceGroup] = {}
        self.given: dict[SequenceGroup, list[list[int]]] = {}
        self.scored: dict[SequenceGroup, list[tuple[int, int]]] = defaultdict(list)
        """Log probabilities of prompts, as they were reported."""
        self.ended: dict[SequenceGroup, str] = {}
        self.cut: set[tuple[SequenceGroup, int]] = set()
        self.limit_at_end: dict[tuple[SequenceGroup, int], int] = {}
        """Limit with which a sequence ended."""
        self.futile: dict[Scheduler, int] = {}
        self.contents: dict[bytes, list[int]] = {}
        """What the names of blocks stand for."""

    def arrive(self, fields: dict[str, Any]) -> None:
        self.futile.clear()  # one that is more urgent may undo what is in flight
        if fields["pooling"]:
            told = ("prompt", "seed", "salt", "tenant", "user", "priority", "deadline", "pooling", "adapter")
            fields = {name: value for name, value in fields.items() if name in told}
            fields |= {"beams": 0, "rolling": False, "grammar": b""}
        known = fields.get("known", []) if not fields["beams"] else []
        fields = {name: value for name, value in fields.items() if name != "known"}
        fields["rolling"] &= not fields["beams"]
        places = [] if fields["pooling"] or fields["rolling"] else fields.get("images", [])
        fields["images"] = images_at(places, len(fields["prompt"]))
        if self.limits.whole_images and fields["images"]:
            fields["scores_prompt"] = False
        if fields["beams"] or fields["rolling"]:
            fields["grammar"] = b""
        if fields["rolling"]:  # for several contexts, and not for ever
            fields["max_tokens"] = 6 * (fields["max_tokens"] or 20)
            known = [5 * count for count in known] if self.sizes is None else []
        delivered = len(fields["prompt"]) if any(known) else fields.get("scored_tokens", 0)
        fields["scored_tokens"] = min(delivered, len(fields["prompt"]))
        request = self.fake.request(name=f"r{len(self.requests)}", **fields)
        given = [self.reference(request, index)[:count] for index, count in enumerate(known)]
        resumed = tuple(SoFar(index, array("i", tokens), False) for index, tokens in enumerate(given))
        request = replace(request, resumed=resumed)
        if (
            not (request.pooling or request.beams) and len(self.requests) % 3 == 0
        ):  # four of five tokens are predicted rightly
            answer = enumerate(self.reference(request, 0))
            request = replace(request, predicted=array("i", [t + (at % 5 == 4) for at, t in answer]))
        group, outcome = self.fleet.accept(request)
        self.requests[group] = request
        self.groups[request.request_id] = group
        self.given[group] = [*given, *([] for _ in range(request.n - len(given)))]
        self.note(outcome)

    def reference(self, request: Request, index: int) -> list[int]:
        """What a sequence of the request gets alone."""
        group = self.groups.get(request.request_id)
        longest = group.limit if group and group.limit else self.limits.max_length_of(request.beam_width)
        if group:  # it may have changed since
            longest = self.limit_at_end.get((group, index), longest)
        key = request.request_id, index, longest
        if key not in self.references:
            self.references[key] = self.fake.reference(request, index, longest, self.limits.window)
        return self.references[key]

    def note(self, outcome: Outcome) -> None:
        for group, some in outcome.scored:
            assert group not in self.ended
            self.scored[group] += some.values  # type: ignore[operator]
        for gain in outcome.gains:
            assert gain.group not in self.ended
            assert (gain.group, gain.sequence_index) not in self.cut
            assert not gain.group.request.pooling
            if gain.token >= 0:
                self.given[gain.group][gain.sequence_index].append(gain.token)
            if gain.finish:
                self.limit_at_end[gain.group, gain.sequence_index] = gain.group.limit
        for gain in outcome.gains:
            if not gain.group.unfinished:
                self.ended[gain.group] = "complete"
        for group, embedding in outcome.embedded:
            assert group not in self.ended
            assert embedding == self.fake.embedding(self.requests[group], self.limits.window)
            self.ended[group] = "embedded"
        for group, error in outcome.failed:
            assert group not in self.ended
            assert isinstance(error, RequestRefused | RequestPoisoned | RowFailed)
            assert not isinstance(error, RowFailed) or self.fake.POISON in self.requests[group].prompt
            self.ended[group] = type(error).__name__

    def join(self, _: None) -> None:
        if len(self.workers) < 2:
            self.add(self.limits if self.sizes is None else self.some_limits(self.sizes))

    def add(self, limits: WorkerLimits) -> None:
        scheduler, outcome = self.fleet.add_worker(limits)
        self.workers[scheduler] = (self.fake.StrictWorker(scheduler.limits), deque())
        self.note(outcome)

    def some_limits(self, sizes: Random) -> WorkerLimits:
        block_size = sizes.choice([1, 2, 4, 8])
        return replace(
            self.limits,
            block_size=block_size,
            num_blocks=sizes.choice([32, 64, 128]) // block_size,
            max_slots=sizes.choice([1, 3, 8]),
            max_step_tokens=sizes.choice([1, 3, 16, 64]),
            host_blocks=sizes.choice([0, 4, 40]),
            max_model_len=sizes.choice([20, self.limits.max_model_len]),
        )

    def lose(self, which: int) -> None:
        if which < len(self.workers):
            scheduler = list(self.workers)[which]
            del self.workers[scheduler]
            self.note(self.fleet.remove_worker(scheduler))

    def live(self, which: int) -> SequenceGroup | None:
        live = [group for group in self.requests if group not in self.ended]
        return live[which] if which < len(live) else None

    def cancel(self, which: int) -> None:
        if (group := self.live(which)) is not None:
            self.fleet.cancel(group)
            self.ended[group] = "cancelled"

    def end(self, which: int) -> None:
        if (group := self.live(which)) is not None:
            index = which % self.requests[group].n
            if self.requests[group].beams is not None:
                return  # they end together
            self.fleet.end_sequence(group, index)
            self.cut.add((group, index))
            if not group.unfinished:
                self.ended[group] = "complete"

    def step(self, times: int = 1) -> bool:
        """Each worker answers a plan, with up to `depth` under way; False if none had anything to do."""
        moved = False
        for _ in range(times):
            for scheduler, (worker, results) in list(self.workers.items()):
                while scheduler.in_flight < self.depth and (plan := scheduler.plan()) is not None:
                    results.append(worker.execute(plan))  # type: ignore[attr-defined]
                if results:
                    self.watch_progress(scheduler)
                    outcome = scheduler.complete(results.popleft())
                    self.fleet.settle(scheduler, outcome)
                    self.note(outcome)
                    moved = True
                    self.check(scheduler, worker)
                if worker.steps % 3 == 0 or not scheduler.in_flight:  # it takes some steps
                    for number in worker.compile():
                        scheduler.compiled(number)
                        moved = True
                if worker.steps % 4 == 0 or not scheduler.in_flight:
                    for number in worker.look():
                        scheduler.seen(number)
                        moved = True
        return moved

    def check(self, scheduler: Scheduler, worker: Any) -> None:
        """The books balance, and what they say is in memory is there."""
        scheduler.check_integrity()
        self.check_backlog()
        for block in scheduler.state.batch.pool._empty:  # what it held is gone for good
            worker.forget(block)
        for sequence in scheduler.state.batch.running:
            table = sequence.table
            assert table is not None
            tokens, adapter = sequence.tokens[: sequence.computed], sequence.group.request.adapter
            images = sequence.group.request.images
            worker.check_readable(tokens, table.blocks, table.dropped, adapter, images)

    def check_backlog(self) -> None:
        """As many count as waiting, of each tenant and on each worker, as there are."""
        found, on = defaultdict[str, list[int]](lambda: [0, 0]), Counter[Scheduler | None]()
        for group, request in self.requests.items():
            if group not in self.ended and (waiting := sum(each.waits for each in group.sequences)):
                found[request.tenant][0] += 1
                found[request.tenant][1] += waiting
                on[self.fleet.home(group)] += waiting
        del on[None]
        assert on == self.fleet._backlog._waiting_on
        tenants = self.fleet._backlog._tenants
        assert found == {name: [each.requests, each.sequences] for name, each in tenants.items()}
        assert all(each.tokens >= each.sequences for each in tenants.values())

    def check_cache(self, scheduler: Scheduler, worker: Any) -> None:
        """Every cached block holds what its name says; of workers that are alike."""
        if self.sizes is not None:
            return
        self.learn_names(worker)
        pool, host = scheduler.state.batch.pool, scheduler.state.batch.pool.host
        for name, block in pool._block_of.items():
            if name in self.contents:  # not if a beam came and went within a step
                content = self.contents[name]
                assert worker.memory[block][: len(content)] == content
                assert worker.states[block] == content[-1]
        for name, slot in host._slot_of.items() if host else ():
            if name in self.contents and name not in host._named:  # those move with the next plan
                assert worker.host[slot][: len(self.contents[name])] == self.contents[name]

    def learn_names(self, worker: Any) -> None:
        """Note which values belong to the names that sequences have given to their blocks."""
        size = self.limits.block_size
        for group in self.requests:
            for sequence in group.sequences:
                if sequence.chain and sequence.chain[-1] not in self.contents:
                    tokens = sequence.tokens[: len(sequence.chain) * size]
                    values = worker.values(tokens, group.request.adapter, group.request.images)
                    for number, name in enumerate(sequence.chain):
                        self.contents[name] = values[number * size : (number + 1) * size]
                if self.limits.recurrent:
                    self.learn_partial_names(worker, sequence)

    def learn_partial_names(self, worker: Any, sequence: Sequence) -> None:
        """Note which values belong to the names that a sequence could give to partial blocks."""
        size, tokens, chain = self.limits.block_size, sequence.tokens, list(sequence.chain)
        request = sequence.group.request
        start, values = root(request.salt, request.adapter), None
        for end in range(len(tokens), 0, -1):
            (name,) = partial_names(chain, start, tokens, [end], size, request.images)
            if end % size and name not in self.contents:
                values = values or worker.values(tokens, request.adapter, request.images)
                self.contents[name] = values[end // size * size : end]

    def watch_progress(self, scheduler: Scheduler) -> None:
        """Some sequence advances for good in every few steps, whatever the size of the pool."""
        flight = scheduler.flights[0]
        rows = zip(flight.sequences, flight.epochs, strict=True)
        advanced = any(sequence.epoch == epoch for sequence, epoch in rows)
        self.futile[scheduler] = 0 if advanced else self.futile.get(scheduler, 0) + 1
        assert self.futile[scheduler] <= scheduler.slots + self.depth

    def finish(self) -> None:
        """Run until all is done, within a bounded number of steps, and compare."""
        if self.sizes is None:
            self.join(None)
        else:  # for those that had no room in any
            self.add(self.limits)
        tokens = sum(
            request.n * (len(request.prompt) + self.limits.max_length + 2 * request.max_tokens)
            for request in self.requests.values()
        )
        for _ in range(50 + 4 * tokens):
            if not self.step():
                break
        else:
            raise AssertionError("no end")
        for group, request in self.requests.items():
            assert group in self.ended
            self.check_scores(group, request)
            for index, tokens in enumerate(self.given[group]):
                if not tokens and self.ended[group] != "complete":
                    continue
                expected = self.reference(request, index)
                if self.ended[group] == "complete" and (group, index) not in self.cut:
                    assert tokens == expected
                else:
                    assert tokens == expected[: len(tokens)]
        for scheduler in self.workers:
            assert scheduler.idle
            assert scheduler.state.batch.pool.free_blocks == scheduler.limits.num_blocks
            assert len(scheduler.state.batch.free_slots) == scheduler.slots
            assert not scheduler.state.unfinished._maker
        assert not any((self.fleet._home, self.fleet._isolated, self.fleet._suspects))
        self.check_backlog()
        assert not self.fleet._backlog._tenants

    def check_scores(self, group: SequenceGroup, request: Request) -> None:
        """What was reported of the prompt is what it must be, each token once; all before the answer."""
        if request.scores_prompt:
            skipped = max(1, request.scored_tokens) - 1
            expected, found = self.fake.scores(request, self.limits.window)[skipped:], self.scored[group]
            assert found == expected[: len(found)]
            assert len(found) == len(expected) or not any(self.given[group])
        else:
            assert group not in self.scored

    def whole(self) -> dict[tuple[str, int], list[int]]:
        """What the sequences got that nobody cut short, by request and index."""
        return {
            (request.request_id, index): self.given[group][index]
            for group, request in self.requests.items()
            for index in range(request.n)
            if self.ended[group] == "complete" and (group, index) not in self.cut
        }


def images_at(places: list[tuple[int, int, int]], prompt: int) -> tuple[Image, ...]:
    """Images of a prompt of so many tokens, by gaps before them, their tokens and what they show."""
    images, end = list[Image](), 0
    for gap, tokens, shows in places:
        start, end = end + gap, end + gap + tokens
        if end > prompt:
            break
        rows = 2 if tokens % 2 == 0 and shows == 2 else 1
        images.append(Image(start, tokens, rows, tokens // rows, bytes([shows % 2]) * 32, f"image {shows}"))
    return tuple(images)


def play(world: World, events: list[tuple[str, object]]) -> None:
    for name, argument in events:
        getattr(world, name)(argument)
        for scheduler, (worker, _) in world.workers.items():
            world.check(scheduler, worker)
            world.check_cache(scheduler, worker)
    world.finish()


def busy_program(random: Random, poison: int) -> list[tuple[str, Any]]:
    """Many requests at once, which a pool of any size must make wait, preempt and share."""
    events: list[tuple[str, Any]] = []
    shared = [random.randrange(5) for _ in range(24)]
    for _ in range(random.randrange(20, 60)):
        prompt = shared[: random.randrange(24)] + [random.randrange(5) for _ in range(random.randrange(1, 8))]
        if random.random() < 0.03:
            prompt.append(poison)
        fields: dict[str, Any] = {
            "prompt": prompt,
            "seed": random.randrange(100),
            "max_tokens": random.choice([0, 1, 5, 20]),
            "n": random.choice([1, 1, 1, 2, 4]),
            "beams": random.choice([0, 0, 0, 0, 0, 2, 4]),
            "stop_token_ids": frozenset(random.sample(range(random.choice([5, 38])), random.choice([0, 3]))),
            "tenant": random.choice("abc"),
            "user": random.choice("xy"),
            "priority": random.choice([-1, 0, 0, 1]),
            "deadline": random.choice([1.0, 2.0, inf]),
            "rolling": random.random() < 0.2,
            "scores_prompt": random.random() < 0.3,
            "scored_tokens": random.choice([0, 0, 0, 1, 9]),
            "pooling": random.choice([*[Pooling.NO_POOLING] * 4, Pooling.MEAN, Pooling.LAST, Pooling.ALL]),
        }
        if random.random() < 0.4:
            some = range(random.randrange(1, 4))
            fields["images"] = [(*random.choices(range(1, 9), k=2), random.randrange(3)) for _ in some]
        fields["grammar"] = [b"", b"", b"", b"x", b"y", b"z"][fields["seed"] % 6]
        if random.random() < 0.3:
            fields["known"] = [random.randrange(24) for _ in range(random.randrange(fields["n"] + 1))]
        events.append(("arrive", fields))
        if random.random() < 0.4:
            events.append(("step", random.randrange(1, 8)))
        if random.random() < 0.15:
            events.append((random.choice(["cancel", "end"]), random.randrange(10)))
        if random.random() < 0.05:
            events.append((random.choice(["lose", "join"]), random.randrange(2)))
    return events
