"""The servicer over plain gRPC on loopback."""

import asyncio
import threading

import grpc
import pytest

from gpu_worker.engine import Engine
from gpu_worker.service import WorkerService
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
