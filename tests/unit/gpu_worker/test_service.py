"""The servicer over plain gRPC on loopback."""

import asyncio
import threading
from dataclasses import replace

import grpc
import pytest

from gpu_worker.engine import MAX_UNANSWERED, Engine
from gpu_worker.service import WorkerService
from proto.rpc import MemoryBus, Node
from proto.sampling_pb2 import Grammar
from proto.worker_pb2 import NewGrammar, WorkerEvent
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


async def all_of(call):
    while await call.read() is not grpc.aio.EOF:
        pass


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


async def test_a_model_without_a_head_says_so(runner) -> None:
    runner.limits = replace(runner.limits, headless=True)
    engine = Engine(runner)
    assert WorkerService(engine, "tiny")._ready.headless
    await engine.stop()


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


def hold_up(runner) -> threading.Event:
    """No plan is begun before the event that this returns is set."""
    may_go = threading.Event()
    begin = runner.begin

    def held_up(plan):
        assert may_go.wait(60)
        return begin(plan)

    runner.begin = held_up
    return may_go


async def test_a_bad_plan_ends_the_call_and_the_next_one_works(make, stub, runner, tiny) -> None:
    may_go = hold_up(runner)
    call = stub.Execute()
    await call.read()
    await call.write(first_plan(make))
    await call.write(make.plan(7))
    await call.write(decode(make, 2))
    may_go.set()
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
        assert may_go.wait(60)
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
    assert dict(caught.value.trailing_metadata())["quire-raised"] == "1"
    call = stub.Execute()
    await call.read()
    await call.write(first_plan(make))
    assert not (await result_of(call)).errors


async def test_a_plan_that_cannot_be_read_ends_the_call_and_the_worker_is_free(runner, make) -> None:
    """Over Quire's own transport, where the bytes are read in the worker's task."""
    bus = MemoryBus()
    async with (
        Node(bus, "worker", lease_seconds=60) as worker,
        Node(bus, "scheduler", lease_seconds=60) as scheduler,
    ):
        engine = Engine(runner)
        server = worker.server(capacity=1)
        add_WorkerServicer_to_server(WorkerService(engine, "tiny"), server)
        await server.start()
        execute = scheduler.channel().stream_stream("/quire.Worker/Execute", bytes, WorkerEvent.FromString)
        for _ in range(2):
            call = execute()
            assert (await call.read()).HasField("ready")
            await call.write(first_plan(make).SerializeToString())
            await call.write(b"\xff\xff\xff")
            assert (await result_of(call)).step == 1, "what came before is answered"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await result_of(call)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "cannot be read" in str(caught.value.details())
        await server.stop(None)
        await engine.stop()


async def test_plans_are_not_kept_without_a_bound(make, stub, runner) -> None:
    may_go = hold_up(runner)
    call = stub.Execute()
    await call.read()
    for _ in range(MAX_UNANSWERED + 1):
        await call.write(make.plan(1))
    may_go.set()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await all_of(call)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await stub.Execute().read()).HasField("ready")


async def test_a_grammar_is_announced_to_the_call_that_brought_it(make, stub) -> None:
    """Without a plan under way, and even if it cannot be compiled: then the row that samples says so."""
    for number in (3, 8):
        call = stub.Execute()
        await call.read()
        grammar = NewGrammar(number=number, grammar=Grammar(text="x", end_tokens=[4]))
        slot = make.slot(0, PROMPT, [3, 1, 2, 8], grammar=number)
        await call.write(make.plan(1, [(0, 0, 5, 0)], new_grammars=[grammar], new_slots=[slot]))
        events = [await call.read() for _ in range(2)]
        assert {event.WhichOneof("event") for event in events} == {"result", "compiled"}
        assert sum(event.compiled for event in events) == number
        await call.write(make.plan(2, [(0, 5, 1, 1)]))
        assert "no tokenizer" in (await result_of(call)).errors[0].message
        call.cancel()
