"""The servicer over plain gRPC on loopback."""

import asyncio
import threading

import grpc
import pytest
import torch

from gpu_worker.engine import Engine, Session
from gpu_worker.service import WorkerService
from gpu_worker.step.pending import Pending
from proto.worker_pb2_grpc import WorkerStub, add_WorkerServicer_to_server

PROMPT = [5, 17, 3, 88, 41, 9]


@pytest.fixture
def runner(make, tiny):
    return make.runner(tiny.directory)


@pytest.fixture(params=[False, True], ids=["answers itself", "overlaps"])
async def stub(runner, request):
    engine = Engine(runner, overlap=request.param)
    server = grpc.aio.server()
    add_WorkerServicer_to_server(WorkerService(engine, "tiny"), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield WorkerStub(channel)
    await server.stop(None)
    await engine.stop()


def first_plan(make):
    return make.plan(1, [(0, 0, 6, 1)], new_slots=[make.slot(0, PROMPT, [3, 1, 2, 8])])


def decode(make, step):
    return make.plan(step, [(0, step + 4, 1, 1)])


async def result_of(call):
    event = await call.read()
    assert event is not grpc.aio.EOF
    return event.result


async def test_ready_says_what_there_is(make, stub) -> None:
    call = stub.Execute()
    ready = (await call.read()).ready
    assert (ready.model, ready.num_blocks, ready.block_size, ready.max_slots) == ("tiny", 64, 4, 8)
    assert (ready.max_model_len, ready.vocab_size, ready.max_step_tokens) == (64, 97, 64)
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK


async def test_plans_queued_ahead_are_answered_in_order(make, stub, tiny) -> None:
    call = stub.Execute()
    await call.read()
    await call.write(first_plan(make))
    for step in range(2, 10):
        await call.write(decode(make, step))
    await call.done_writing()
    results = [await result_of(call) for _ in range(9)]
    assert await call.read() is grpc.aio.EOF
    assert [result.step for result in results] == list(range(1, 10))
    assert [make.unpack(result.tokens)[0] for result in results] == make.expected(tiny.model, PROMPT, 9)
    assert all(result.duration_us > 0 for result in results)


async def test_a_bad_plan_ends_the_call_and_the_next_one_works(make, stub, tiny) -> None:
    call = stub.Execute()
    await call.read()
    await call.write(first_plan(make))
    await call.write(make.plan(7))
    await call.write(decode(make, 2))
    assert (await result_of(call)).step == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await result_of(call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "plan 7 came after plan 1"
    call = stub.Execute()
    assert (await call.read()).HasField("ready")
    await call.write(first_plan(make))
    assert make.unpack((await result_of(call)).tokens) == make.expected(tiny.model, PROMPT, 1)


async def test_a_bad_row_and_a_good_one(make, stub, tiny) -> None:
    call = stub.Execute()
    await call.read()
    news = [make.slot(0, PROMPT, [3, 1]), make.slot(1, PROMPT, [500, 2])]
    await call.write(make.plan(1, [(0, 0, 6, 1), (1, 0, 6, 1)], new_slots=news))
    result = await result_of(call)
    assert make.unpack(result.tokens) == [*make.expected(tiny.model, PROMPT, 1), -1]
    assert [error.row for error in result.errors] == [1]
    await call.write(decode(make, 2))
    assert not (await result_of(call)).errors


async def test_a_cancelled_call_leaves_nothing_behind(make, stub, runner) -> None:
    entered, may_go = threading.Event(), threading.Event()
    begin = runner.begin

    def held_up(plan):
        entered.set()
        assert may_go.wait(10)
        return begin(plan)

    runner.begin = held_up
    call = stub.Execute()
    await call.read()
    await call.write(first_plan(make))
    await call.write(decode(make, 2))
    assert await asyncio.to_thread(entered.wait, 10)
    call.cancel()  # one plan is being run, one is queued
    waiting = stub.Execute()
    ready = asyncio.ensure_future(waiting.read())
    may_go.set()
    assert (await ready).HasField("ready")
    await waiting.write(first_plan(make))
    assert not (await result_of(waiting)).errors


async def test_one_call_at_a_time(make, stub) -> None:
    first = stub.Execute()
    await first.read()
    second = stub.Execute()
    ready = asyncio.ensure_future(second.read())
    await first.write(first_plan(make))
    await first.read()
    assert not ready.done()
    first.cancel()
    assert (await ready).HasField("ready")


async def test_the_next_step_is_given_before_the_result_is_waited_for(make, tiny) -> None:
    runner = make.runner(tiny.directory)
    begin, second = runner.begin, threading.Event()

    class Slow:
        """A step whose device is done no sooner than the next step has been given to it."""

        def __init__(self, step):
            self.step, self.failed = step, ()

        def result(self):
            assert second.wait(10)
            return self.step.result()

    def watched(plan):
        step = begin(plan)
        if plan.step == 2:
            second.set()
        return Slow(step)

    runner.begin = watched
    engine = Engine(runner, overlap=True)
    session = Session(engine)
    for plan in (first_plan(make), decode(make, 2)):
        session.submit(plan)
    session.finish()
    found = [await asyncio.wait_for(session.events.get(), 10) for _ in range(3)]
    await engine.stop()
    assert found[2] is None
    tokens = [make.unpack(result.tokens)[0] for result in found[:2]]
    assert tokens == make.expected(tiny.model, PROMPT, 2)


def failing_step(runner, make) -> Pending:
    """A step under way whose only row, of slot 0, will turn out to have failed."""
    model = runner.model.logits
    runner.model.logits = lambda hidden: model(hidden) * torch.nan
    failing = runner.begin(first_plan(make))
    runner.model.logits = model
    return failing


async def test_what_a_late_result_tells_is_not_held_against_the_next_sequence(make, tiny) -> None:
    """A slot whose sequence failed has been taken by another when the result comes."""
    runner = make.runner(tiny.directory)
    failing = failing_step(runner, make)
    again = make.slot(0, PROMPT, [4, 5, 6, 7])
    following = runner.begin(make.plan(2, [(0, 0, 6, 1)], new_slots=[again], freed_slots=[0]))
    assert [error.row for error in failing.result().errors] == [0]
    runner.settle(failing)
    assert make.unpack(following.result().tokens) == make.expected(tiny.model, PROMPT, 1)
    assert not runner.execute(make.plan(3, [(0, 6, 1, 1)])).errors


async def test_nor_is_what_is_told_while_nobody_holds_the_slot(make, tiny) -> None:
    """Its client has left in the meantime, say."""
    runner = make.runner(tiny.directory)
    failing = failing_step(runner, make)
    runner.begin(make.plan(2, freed_slots=[0]))
    assert [error.row for error in failing.result().errors] == [0]
    runner.settle(failing)
    again = make.slot(0, PROMPT, [4, 5, 6, 7])
    result = runner.execute(make.plan(3, [(0, 0, 6, 1)], new_slots=[again]))
    assert make.unpack(result.tokens) == make.expected(tiny.model, PROMPT, 1)


async def test_a_fault_of_the_worker_ends_the_call_and_not_the_worker(make, stub, runner) -> None:
    begin = runner.begin

    def broken(plan):
        runner.begin = begin
        raise RuntimeError("the device is on fire")

    runner.begin = broken
    call = stub.Execute()
    await call.read()
    await call.write(first_plan(make))
    with pytest.raises(grpc.aio.AioRpcError, match="on fire") as caught:
        await result_of(call)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    call = stub.Execute()
    await call.read()
    await call.write(first_plan(make))
    assert not (await result_of(call)).errors
