"""What a worker reads: plans."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from gpu_worker.engine import Engine, Session
from gpu_worker.errors import PlanError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.memory.host import HostPages
from proto.sampling_pb2 import ALL, MEAN
from proto.worker_pb2 import StepPlan
from tests.support.mutate import Case, cases, spoiled
from tests.unit.gpu_worker.conftest import llama, make_runner, new_slot, plan, sampled

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("fuzzed")
    llama().save_pretrained(directory)
    return directory


@pytest.fixture
async def engine(directory: Any) -> AsyncIterator[Engine]:
    runner = make_runner(directory, ReferenceKernels())
    runner.host = HostPages(runner.caches, 8)
    engine = Engine(runner)
    yield engine
    await engine.stop()


def good_plans() -> list[StepPlan]:
    """Three steps that use every part of a plan."""
    first = [
        new_slot(0, [5, 17, 3, 88, 41, 9], [3, 1, 2], traceparent=TRACE),
        new_slot(1, [1, 2, 3], [4, 5], sampling=sampled(seed=3, top_p=0.5, min_p=0.1, presence_penalty=1)),
        new_slot(2, [7, 8], [6], candidates=3),
        new_slot(3, [7, 8, 9], [7], pooling=MEAN),
        new_slot(5, [7, 8, 9], [8], pooling=ALL),
    ]
    second = [new_slot(4, [9], [9], prompt_length=6, forked_tokens=6, forked_from=0)]
    return [
        plan(1, [(0, 0, 6, 1), (1, 0, 3, 1), (2, 0, 2, 1), (3, 0, 3, 0), (5, 0, 3, 0)], new_slots=first),
        plan(
            2,
            [(0, 6, 3, 3), (2, 2, 1, 1)],
            freed_slots=[3],
            new_slots=second,
            table_appends=([1], [10]),
            given_tokens=([2], [11]),
            swap_out=([3], [0]),
            copies=([1], [12]),
            draft_tokens=[4, 5],
        ),
        plan(3, freed_slots=[0, 1, 2], table_cuts=([4], [1]), swap_in=([0], [13])),
    ]


async def run(engine: Engine, plans: list[StepPlan | bytes]) -> list[Any]:
    """What a session answers to plans, until it has ended."""
    session, answers = Session(engine), []
    try:
        for each in plans:
            session.submit(StepPlan.FromString(each) if isinstance(each, bytes) else each)
        session.finish()
    except (DecodeError, PlanError) as error:
        session.refuse(PlanError(str(error)))
    try:
        async with asyncio.timeout(60):
            while (event := await session.events.get()) is not None:
                answers.append(event)
                if isinstance(event, Exception):
                    break
    finally:
        session.end()
    return answers


def with_one_spoiled(of: Case) -> list[StepPlan | bytes]:
    plans: list[StepPlan | bytes] = [*good_plans()]
    at = of.randrange(len(plans))
    target = plans[at]
    assert isinstance(target, StepPlan)
    plans[at] = spoiled(of, target)
    return plans


async def test_plans(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """A plan is carried out, or the call ends because of it and the next one finds the worker as it was."""
    caplog.set_level("CRITICAL")
    expected = [result.tokens for result in await run(engine, [*good_plans()])]
    for of in cases("plan"):
        answers = await run(engine, with_one_spoiled(of))
        faults = [each for each in answers if isinstance(each, Exception) and not isinstance(each, PlanError)]
        assert faults == []
        if of.number % 20 == 0:
            again = await run(engine, [*good_plans()])
            assert [result.tokens for result in again] == expected
    assert not engine.lost.done()
