"""The engine without its servicer: calls are served by workers that come, go, fail and lie."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from ops.replay.file import read
from ops.replay.plans import Replayed
from proto.recording_pb2 import Recording
from proto.sampling_pb2 import BeamSearch
from proto.scheduler_pb2 import SequenceSoFar
from proto.worker_pb2 import StepPlan, StepResult
from proto.worker_pb2_grpc import WorkerStub, add_WorkerServicer_to_server
from scheduler_svc import admission, progress, worker_link
from scheduler_svc import engine as module
from scheduler_svc.call import Call
from scheduler_svc.core.errors import (
    HandedOver,
    RequestPoisoned,
    RequestRefused,
    RowFailed,
    StepRaised,
    TooMuchWaits,
)
from scheduler_svc.core.fleet import Fleet
from scheduler_svc.core.limits import WorkerLimits
from scheduler_svc.core.scheduler import Scheduler
from scheduler_svc.core.sequence import Sequence, SequenceGroup, State
from scheduler_svc.core.suspicion import MAX_DEATHS
from scheduler_svc.engine import Engine
from scheduler_svc.intake import request_from
from scheduler_svc.settings import SchedulerSettings
from scheduler_svc.worker_link import WorkerLink
from tests.unit.scheduler_svc.test_service import pack, seen, start, unpack


class Rig:
    """An engine, and the door at which its workers are."""

    def __init__(self, fake: SimpleNamespace, limits: WorkerLimits, **settings: Any) -> None:
        self.fake = fake
        self.workers = fake.Workers(limits)
        self.settings = SchedulerSettings(model_name="m", **settings)
        self.announced: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    async def __aenter__(self) -> "Rig":
        self._server = grpc.aio.server()
        add_WorkerServicer_to_server(self.workers, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")

        def announce(workers: int, longest: int) -> None:
            self.announced.put_nowait((workers, longest))

        self.failures: list[BaseException] = []
        """What has ended the process."""
        self.engine = Engine(WorkerStub(self._channel), self.settings, announce, self.failures.append)
        self.running = asyncio.ensure_future(self.engine.run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self._channel.close()
        await self._server.stop(None)
        assert not self.workers.faults

    async def join(self, workers: int = 1) -> None:
        self.workers.join()
        while (await self.announced.get())[0] != workers:
            pass

    async def lose(self) -> None:
        """Kill the workers, and wait until the engine knows."""
        self.workers.kill()
        while (await self.announced.get())[0] != 0:
            pass

    def open(self, prompt: list[int], watch: Any = None, **fields: Any) -> tuple[SequenceGroup, Call]:
        return self.engine.open(request_from(start(prompt, **fields).start, ""), watch)

    def expected(self, prompt: list[int], index: int = 0, **fields: Any) -> list[int]:
        request = self.fake.request(prompt, **{"seed": 7, "max_tokens": 8, **fields})
        return list(self.fake.reference(request, index, self.workers.limits.max_length))

    def held(self) -> int:
        """Blocks that are held, once the books have been checked."""
        for scheduler in self.engine.fleet.schedulers:
            scheduler.check_integrity()
        return sum(scheduler.held_blocks for scheduler in self.engine.fleet.schedulers)


async def tokens_of(call: Call) -> dict[int, list[int]]:
    """Everything that a call delivers, by sequence. Raises the error that ends it."""
    tokens: dict[int, list[int]] = {}
    while (response := await call.get()) is not None:
        for delta in response.deltas:  # type: ignore[union-attr]
            tokens.setdefault(delta.index, []).extend(unpack(delta.tokens))
    if call.error is not None:
        raise call.error
    return tokens


@pytest.fixture
async def rig(fake: SimpleNamespace) -> AsyncIterator[Rig]:
    async with asyncio.timeout(60), Rig(fake, fake.limits(num_blocks=64, max_slots=8)) as rig:
        yield rig


async def test_calls_get_what_their_sequences_gain(rig: Rig) -> None:
    await rig.join()
    calls = [rig.open([number, 1], n=2, seed=number)[1] for number in range(5)]
    for number, call in enumerate(calls):
        samples = [rig.expected([number, 1], index, seed=number) for index in range(2)]
        assert await tokens_of(call) == dict(enumerate(samples))
    assert rig.held() == 0


async def test_workers_are_announced_as_they_come_and_go(rig: Rig) -> None:
    rig.workers.join()
    assert await rig.announced.get() == (1, 64)
    rig.workers.kill()
    assert await rig.announced.get() == (0, 0)


async def test_a_worker_that_hangs_is_announced_until_it_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(progress, "STALLED_SECONDS", 0.03)
    rig.running.cancel()  # it sleeps until its next look, which is far away
    rig.running = asyncio.ensure_future(rig.engine.run())
    await rig.join()
    rig.workers.going.clear()
    _, call = rig.open([1, 2])
    assert await rig.announced.get() == (1, 64)
    assert rig.engine.stalled == 1
    assert "1 of 1 workers do not get on with a step" in caplog.text
    rig.workers.going.set()
    assert await rig.announced.get() == (1, 64)
    assert rig.engine.stalled == 0
    assert await tokens_of(call) == {0: rig.expected([1, 2])}


async def test_a_closed_call_frees_what_it_holds(rig: Rig) -> None:
    await rig.join()
    group, call = rig.open([1] * 21, n=4, max_tokens=0)
    await call.get()
    assert rig.held() > 0
    rig.engine.close(group)
    assert rig.held() == 0
    rig.engine.close(group)  # once more changes nothing


async def test_a_call_ends_with_its_last_sequence(rig: Rig) -> None:
    await rig.join()
    group, call = rig.open([1, 2], n=2, max_tokens=0)
    await call.get()
    rig.engine.end_sequence(group, 0)
    assert group.unfinished == 1
    rig.engine.end_sequence(group, 1)
    await tokens_of(call)
    async with asyncio.timeout(60):
        while rig.held():  # a row may be in flight, whose block is held until its result
            await asyncio.sleep(0.001)


async def test_a_request_wakes_its_own_worker_alone(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among many workers each would be asked for a plan as often as all of them have requests or results."""
    monkeypatch.setattr(worker_link, "REST_SECONDS", 60.0)  # a link that is idle wakes itself once
    await rig.join()
    await rig.join(2)
    woken: list[WorkerLink] = []
    wake = WorkerLink.wake
    monkeypatch.setattr(WorkerLink, "wake", lambda self: (woken.append(self), wake(self)))
    group, call = rig.open([4], n=2)
    own = rig.engine.links[rig.engine.fleet.home(group)]
    assert woken == [own]
    rig.engine.end_sequence(group, 1)
    assert woken == [own, own]
    assert (await tokens_of(call))[0] == rig.expected([4])
    rig.engine.close(group)
    assert set(woken) == {own}
    cancelled, _ = rig.open([4])
    own = rig.engine.links[rig.engine.fleet.home(cancelled)]
    woken.clear()
    rig.engine.close(cancelled)
    assert woken == [own]


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({}, {}),
        ({"adapter": "a"}, {"adapters": ["a"]}),
        ({"resumed": [SequenceSoFar(tokens=pack([5]))], "fingerprint": "f"}, {"fingerprints": ["f"]}),
        ({"images": [seen(0, 1)]}, {"images": True}),
        ({"temperature": 0, "beams": BeamSearch(beam_width=2, length_penalty=1)}, None),
    ],
)
async def test_calls_are_handed_to_who_has_what_they_need(
    rig: Rig, fields: dict[str, Any], needed: dict[str, Any] | None
) -> None:
    """With another they would wait, or be refused after they were accepted."""
    _, call = rig.open([1], **fields)
    offer = {"workers": 1, "max_model_len": 64, "adapters": ["b"], "fingerprints": ["g"], "images": False}
    if needed != {}:
        rig.engine.hand_over([offer])
        assert call.error is None
    rig.engine.hand_over(None if needed is None else [offer, offer | needed])
    assert isinstance(call.error, HandedOver)


async def test_states_are_watched(rig: Rig) -> None:
    await rig.join()
    seen: list[State] = []

    def watch(sequence: Sequence) -> None:
        seen.append(sequence.state)

    await tokens_of(rig.open([1, 2], watch)[1])
    assert seen == [State.WAITING, State.PREFILL, State.DECODE, State.DONE]


async def test_requests_wait_for_a_worker(rig: Rig) -> None:
    (_, call), (_, refused) = rig.open([4]), rig.open([4] * 100)
    await rig.join()
    assert await tokens_of(call) == {0: rig.expected([4])}
    with pytest.raises(RequestRefused):
        await tokens_of(refused)


async def test_a_full_queue_refuses_what_has_not_begun(fake: SimpleNamespace) -> None:
    async with asyncio.timeout(60), Rig(fake, fake.limits(max_slots=1), max_waiting_requests=1) as rig:
        rig.open([1])
        with pytest.raises(TooMuchWaits):
            rig.open([2])
        begun = rig.expected([3])
        resumed = [{"index": 0, "tokens": pack(begun[:3])}]
        _, call = rig.open([3], resumed=resumed)
        await rig.join()
        assert await tokens_of(call) == {0: begun[3:]}


@pytest.mark.parametrize(("most", "measured"), [(0, 0), (9, 1)])
async def test_workers_are_asked_what_has_begun_only_when_it_is_measured(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, most: int, measured: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(Fleet, "admitted_tokens", property(lambda fleet: asked.append(1) or len(asked)))
    monkeypatch.setattr(admission, "SAMPLE_SECONDS", 60.0)
    async with asyncio.timeout(60), Rig(fake, fake.limits(), max_waiting_requests=most) as rig:
        await rig.join()
        _, call = rig.open([1])
        assert await tokens_of(call) == {0: rig.expected([1])}
    assert len(asked) == measured


async def test_a_worker_that_dies_is_not_noticed(rig: Rig) -> None:
    await rig.join()
    calls = [rig.open([number, number], n=2, max_tokens=20)[1] for number in range(5)]
    firsts = [await call.get() for call in calls]
    await rig.lose()
    rig.workers.join()
    for number, (call, first) in enumerate(zip(calls, firsts, strict=True)):
        tokens = {delta.index: unpack(delta.tokens) for delta in first.deltas}  # type: ignore[union-attr]
        for index, more in (await tokens_of(call)).items():
            tokens.setdefault(index, []).extend(more)
        assert tokens == {index: rig.expected([number] * 2, index, max_tokens=20) for index in range(2)}
    assert len(rig.workers.workers) == 2
    assert rig.held() == 0


async def test_two_workers_share(rig: Rig) -> None:
    await rig.join(1)
    await rig.join(2)
    calls = [rig.open([number], max_tokens=30)[1] for number in range(6)]
    assert [await tokens_of(call) for call in calls] == [
        {0: rig.expected([number], max_tokens=30)} for number in range(6)
    ]
    assert all(worker.computed_tokens for worker in rig.workers.workers)


async def test_a_request_that_kills_workers_is_ended(rig: Rig) -> None:
    await rig.join()
    rig.workers.going.clear()
    _, call = rig.open([1])
    for _ in range(1 + MAX_DEATHS):
        await rig.workers.received.wait()
        await rig.lose()
        await rig.join()
    with pytest.raises(RequestPoisoned, match="one worker after the other"):
        await tokens_of(call)
    rig.workers.going.set()
    assert await tokens_of(rig.open([2])[1]) == {0: rig.expected([2])}


async def test_a_request_whose_steps_raise_is_ended_and_no_other(fake: SimpleNamespace) -> None:
    # With one plan in flight, none is written while the call ends: gRPC forgets its last words then.
    async with asyncio.timeout(60), Rig(fake, fake.limits(num_blocks=64, max_slots=8), plan_depth=1) as rig:
        await rig.join()
        rig.workers.last_words = (("quire-raised", "1"),)
        rig.workers.raises = lambda plan: any(unpack(new.tokens)[0] == 9 for new in plan.new_slots)
        calls = [rig.open([number], max_tokens=30)[1] for number in range(4)]
        _, culprit = rig.open([9])
        with pytest.raises(StepRaised, match="INTERNAL: a shape does not fit"):
            await tokens_of(culprit)
        assert [await tokens_of(call) for call in calls] == [
            {0: rig.expected([number], max_tokens=30)} for number in range(4)
        ]
        assert len(rig.workers.workers) == 3, "the same worker took a call after each error"


async def test_workers_that_are_stopped_in_order_count_against_nobody(fake: SimpleNamespace) -> None:
    # With one plan in flight, none is written while the call ends: gRPC forgets its last words then.
    async with asyncio.timeout(60), Rig(fake, fake.limits(num_blocks=64, max_slots=8), plan_depth=1) as rig:
        await rig.join()
        rig.workers.going.clear()
        group, call = rig.open([1])
        rig.workers.last_words = (("quire-outside", "stopped"),)
        for _ in range(2 + MAX_DEATHS):
            await rig.workers.received.wait()
            await rig.lose()
            assert group.suspicion is None
            await rig.join()
        rig.workers.going.set()
        assert await tokens_of(call) == {0: rig.expected([1])}


async def test_a_row_error_ends_its_call_alone(rig: Rig) -> None:
    await rig.join()
    (_, good), (_, bad) = rig.open([1, 2]), rig.open([1, rig.fake.POISON, 3])
    with pytest.raises(RowFailed):
        await tokens_of(bad)
    assert await tokens_of(good) == {0: rig.expected([1, 2])}


@pytest.mark.parametrize("lie", ["step", "tokens", "ragged", "vocabulary"])
async def test_a_worker_that_answers_nonsense_is_given_up(rig: Rig, lie: str) -> None:
    await rig.join()

    def spoil(result: StepResult) -> None:
        rig.workers.spoil = lambda result: None
        if lie == "step":
            result.step += 5
        elif lie == "vocabulary":
            result.tokens = pack([-1])
        else:
            result.tokens += pack([1]) if lie == "tokens" else b"x"

    rig.workers.spoil = spoil
    assert await tokens_of(rig.open([1])[1]) == {0: rig.expected([1])}
    assert len(rig.workers.workers) == 2


async def test_a_worker_with_nothing_to_offer_is_passed_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    good = rig.workers.limits
    fields = {name: getattr(good, name) for name in WorkerLimits.__slots__}
    rig.workers.limits = SimpleNamespace(**{**fields, "num_blocks": 0})
    rig.workers.join()
    while "failed before it was ready" not in caplog.text:
        await asyncio.sleep(0.001)
    rig.workers.limits = good
    assert await rig.announced.get() == (1, 64)
    assert await tokens_of(rig.open([1])[1]) == {0: rig.expected([1])}


@pytest.mark.parametrize("where", ["read", "check"])
async def test_a_result_that_cannot_be_checked_is_the_worker_s_fault(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Nothing has changed in the core yet: whatever is raised then ends one worker, and nothing else."""
    await rig.join()
    (scheduler,) = rig.engine.fleet.schedulers
    if where == "check":
        monkeypatch.setattr(scheduler, "check", lambda result: 1 / 0)
    else:
        read, asked = module.result_from, []

        def failing(message: StepResult) -> Any:
            asked.append(message)
            return read(message) if len(asked) > 1 else 1 / 0

        monkeypatch.setattr(module, "result_from", failing)
    assert await tokens_of(rig.open([1])[1]) == {0: rig.expected([1])}
    assert "its result cannot be checked: ZeroDivisionError" in caplog.text
    assert not rig.failures


# --- the core fails ---


class Bug(Exception):
    """As no code should raise it."""


def fails(*_: Any) -> Any:
    raise Bug


@pytest.mark.parametrize(
    ("of", "method"),
    [
        (Scheduler, "plan"),
        (Scheduler, "settle"),
        (Fleet, "settle"),
        (module, "response_to"),
        (worker_link, "plan_to"),
    ],
)
async def test_a_step_that_fails_ends_the_process_and_nothing_more_is_said(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, of: Any, method: str
) -> None:
    """Tokens may have been taken in and not delivered: from now on no answer can be trusted."""
    await rig.join()
    _, bystander = rig.open([2], max_tokens=0)
    await bystander.get()
    monkeypatch.setattr(of, method, fails)
    _, call = rig.open([1])
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(asyncio.shield(rig.running), 60)
    assert caught.group_contains(Bug)
    assert [type(error) for error in rig.failures] == [Bug]
    monkeypatch.undo()
    assert call.error is bystander.error is None
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call.get(), 0.05)
    with pytest.raises(Bug):  # nor is anything begun with what is left of the core
        rig.open([3])
    assert not [one for one in caplog.records if one.name.startswith("scheduler_svc") and one.levelno >= 30]


async def test_a_request_that_the_core_cannot_take_on_or_let_go_ends_the_process(
    fake: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in ("accept", "end_sequence", "cancel"):
        async with asyncio.timeout(60), Rig(fake, fake.limits()) as rig:
            await rig.join()
            group, _ = rig.open([1], max_tokens=0)
            monkeypatch.setattr(Fleet, method, fails)
            asked: dict[str, Callable[[], Any]] = {
                "accept": lambda rig=rig: rig.open([2]),
                "cancel": lambda rig=rig, group=group: rig.engine.close(group),
                "end_sequence": lambda rig=rig, group=group: rig.engine.end_sequence(group, 0),
            }
            with pytest.raises(Bug):
                asked[method]()
            assert [type(error) for error in rig.failures] == [Bug]
            monkeypatch.undo()


async def test_books_that_do_not_balance_end_the_process(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker_link, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(Scheduler, "check_integrity", fails)
    await rig.join()
    await tokens_of(rig.open([1])[1])
    while not rig.failures:
        await asyncio.sleep(0.001)
    assert [type(error) for error in rig.failures] == [Bug]


async def test_whatever_a_worker_begins_with_the_next_one_is_asked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)
    limits_from, told = module.limits_from, []

    def read(ready: object) -> WorkerLimits:
        told.append(ready)
        if len(told) == 1:
            raise OverflowError("cannot convert float infinity to integer")
        return limits_from(ready)

    monkeypatch.setattr(module, "limits_from", read)
    await rig.join()
    assert await tokens_of(rig.open([1])[1]) == {0: rig.expected([1])}
    assert "before it was ready: OverflowError" in caplog.text


async def test_requests_that_cannot_be_handed_on_end_the_engine(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their callers have other schedulers take them up. Here they would wait for ever."""
    await rig.join()
    monkeypatch.setattr(rig.engine.fleet, "remove_worker", fails)
    rig.workers.kill()
    with pytest.raises(ExceptionGroup) as caught:
        await asyncio.wait_for(asyncio.shield(rig.running), 60)
    assert caught.group_contains(Bug)
    assert [type(error) for error in rig.failures] == [Bug]


async def test_a_candidate_that_is_no_token_is_the_worker_s_fault(rig: Rig) -> None:
    await rig.join()

    def spoil(result: StepResult) -> None:
        if result.HasField("candidates"):
            rig.workers.spoil = lambda result: None
            result.candidates.top.tokens = pack([-5] * (len(result.candidates.top.tokens) // 4))

    rig.workers.spoil = spoil
    _, call = rig.open([1], temperature=0, beams=BeamSearch(beam_width=2, length_penalty=1))
    assert len((await tokens_of(call))[0]) == 8
    assert len(rig.workers.workers) == 2


@pytest.fixture
async def recorded(fake: SimpleNamespace, tmp_path: Path) -> AsyncIterator[Rig]:
    limits = fake.limits(num_blocks=64, max_slots=8)
    async with asyncio.timeout(60), Rig(fake, limits, recordings=tmp_path / "recordings") as rig:
        yield rig


def recordings(rig: Rig) -> list[Recording]:
    paths = sorted((rig.settings.recordings or Path()).glob("*.quire"))
    return [read(path) for path in paths]


async def until_there(rig: Rig) -> Recording:
    """The first recording, once it is written."""
    while not (found := recordings(rig)):
        await asyncio.sleep(0.01)
    return found[0]


async def test_what_a_worker_s_death_leaves_behind_can_be_replayed(recorded: Rig) -> None:
    await recorded.join()
    for seed in range(3):
        await tokens_of(recorded.open([1, 2, 3], n=2, seed=seed)[1])

    def raises_once(plan: StepPlan) -> bool:
        if not plan.new_slots:
            return False
        recorded.workers.raises = lambda plan: False  # of two recordings, either may be the first on disk
        return True

    recorded.workers.raises = raises_once
    recorded.workers.last_words = (("quire-raised", "9"),)
    recorded.open([4, 5], seed=9)
    found = await until_there(recorded)
    assert found.reason.startswith("a worker was lost: INTERNAL")
    assert found.worker.num_blocks == 64
    replayed = Replayed(found).run()
    assert replayed.lines == []
    assert replayed.steps >= len([event for event in found.events if event.result]) > 10


async def test_a_worker_that_is_stopped_leaves_nothing_behind(recorded: Rig) -> None:
    await recorded.join()
    await tokens_of(recorded.open([1, 2, 3])[1])
    recorded.workers.last_words = (("quire-outside", "stopped"),)
    await recorded.lose()
    assert recordings(recorded) == []


async def test_a_failure_of_the_core_is_on_tape_before_the_process_ends(
    recorded: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorded.join()
    await tokens_of(recorded.open([1, 2, 3])[1])
    monkeypatch.setattr(Scheduler, "plan", lambda self: 1 // 0)
    recorded.open([4, 5])
    while not recorded.failures:
        await asyncio.sleep(0.01)
    (found,) = recordings(recorded)
    assert found.reason.startswith("the core failed: ZeroDivisionError")
    assert found.events[-1].idle  # it was about to plan
    assert "ZeroDivisionError" in Replayed(found).run().lines[0]


async def test_a_recording_is_written_when_it_is_asked_for(recorded: Rig) -> None:
    await recorded.join()
    await tokens_of(recorded.open([1, 2, 3])[1])
    await recorded.engine.record()
    assert (await until_there(recorded)).reason == "it was asked for"


async def test_a_directory_that_cannot_be_written_stops_nothing(
    fake: SimpleNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    async with Rig(fake, fake.limits(), recordings=tmp_path / "file") as rig:
        await rig.join()
        await rig.engine.record()
        assert await tokens_of(rig.open([1, 2])[1]) == {0: rig.expected([1, 2])}
    assert "could not be written" in caplog.text


async def test_nothing_is_recorded_unless_a_directory_is_named(rig: Rig) -> None:
    await rig.join()
    assert [type(each) for each in rig.engine.fleet.schedulers] == [Scheduler]
    await rig.engine.record()
