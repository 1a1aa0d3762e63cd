"""Embed over plain gRPC, with strict fake workers behind the service."""

import asyncio
import struct
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from proto.sampling_pb2 import ALL, CLASSIFY, LAST, MEAN, NO_POOLING
from proto.scheduler_pb2 import EmbedTokensRequest
from scheduler_svc.core.request import Pooling
from tests.unit.scheduler_svc.test_service import (
    Stage,
    collect,
    expected,
    pack,
    settled,
    start,
)

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
async def stage(fake: SimpleNamespace) -> AsyncIterator[Stage]:
    async with asyncio.timeout(60), Stage(fake, fake.limits(num_blocks=64, max_slots=8)) as stage:
        yield stage


def text(tokens: list[int], pooling: Any = MEAN, **fields: Any) -> EmbedTokensRequest:
    return EmbedTokensRequest(request_id="r", tokens=pack(tokens), pooling=pooling, **fields)


def vector(stage: Stage, tokens: list[int], pooling: Pooling = Pooling.MEAN) -> bytes:
    found: bytes = stage.fake.embedding(stage.fake.request(tokens, pooling=pooling))
    return found


async def test_many_beside_answers(stage: Stage) -> None:
    await stage.join()
    texts = [[each % 5] * (1 + 3 * each % 17) for each in range(24)]
    ways = [(Pooling.MEAN, Pooling.LAST, Pooling.ALL)[each % 3] for each in range(24)]
    answer = asyncio.ensure_future(collect(stage.stub.Generate(iter([start([1, 2, 3])]))))
    calls = [stage.stub.Embed(text(tokens, int(way))) for tokens, way in zip(texts, ways, strict=True)]
    found = [(await call).embedding for call in calls]
    assert found == [vector(stage, tokens, way) for tokens, way in zip(texts, ways, strict=True)]
    assert await answer == {0: expected(stage, [1, 2, 3])}
    assert stage.all_free()


@pytest.mark.parametrize("pooling", [Pooling.MEAN, Pooling.ALL])
async def test_it_goes_on_with_another_worker(stage: Stage, pooling: Pooling) -> None:
    stage.workers.going.clear()
    await stage.join()
    call = stage.stub.Embed(text([4] * 30, int(pooling)))
    while not stage.engine.fleet._home:
        await asyncio.sleep(0.001)
    stage.workers.kill()
    stage.workers.going.set()
    stage.workers.join()
    assert (await call).embedding == vector(stage, [4] * 30, pooling)


async def test_cancelled_in_the_middle(stage: Stage) -> None:
    stage.workers.going.clear()
    await stage.join()
    call = stage.stub.Embed(text([4] * 30))
    while not stage.engine.fleet._home:
        await asyncio.sleep(0.001)
    call.cancel()
    stage.workers.going.set()
    await settled(stage)
    assert stage.all_free()
    assert (await stage.stub.Embed(text([4, 2]))).embedding == vector(stage, [4, 2])


async def test_fewer_dimensions(stage: Stage) -> None:
    await stage.join()
    whole = vector(stage, [4, 2])
    assert (await stage.stub.Embed(text([4, 2], dimensions=2))).embedding == whole
    short = (await stage.stub.Embed(text([4, 2], dimensions=1))).embedding
    assert abs(struct.unpack("<f", short)[0]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("request_", "param", "code"),
    [
        (text([]), "prompt", INVALID),
        (EmbedTokensRequest(tokens=b"abc", pooling=MEAN), "prompt", INVALID),
        (text([1], NO_POOLING), "pooling", INVALID),
        (text([1], 9), "pooling", INVALID),
        (text([1] * 65, LAST), "prompt", grpc.StatusCode.OUT_OF_RANGE),
        (text([-1], LAST), "prompt", INVALID),
        (text([1], LAST, dimensions=3), "dimensions", INVALID),
        (text([1], CLASSIFY, dimensions=1), "dimensions", INVALID),
        (text([1], ALL, dimensions=1), "dimensions", INVALID),
        (text([1], CLASSIFY), "model", INVALID),
    ],
)
async def test_what_is_refused(stage: Stage, request_: EmbedTokensRequest, param: str, code: Any) -> None:
    await stage.join()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stage.stub.Embed(request_)
    assert caught.value.code() is code
    assert dict(caught.value.trailing_metadata())["quire-param"] == param


async def test_a_row_that_fails_ends_its_text_alone(stage: Stage) -> None:
    await stage.join()
    good, bad = stage.stub.Embed(text([1, 2])), stage.stub.Embed(text([1, stage.fake.POISON]))
    assert (await good).embedding == vector(stage, [1, 2])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bad
    assert caught.value.code() is grpc.StatusCode.INTERNAL


async def test_too_much_waits(fake: SimpleNamespace) -> None:
    limits = fake.limits(num_blocks=64, max_slots=1)
    async with asyncio.timeout(60), Stage(fake, limits, max_waiting_requests=1) as stage:
        stage.workers.going.clear()
        await stage.join()
        calls = [stage.stub.Embed(text([each] * 9)) for each in range(4)]
        refused = await asyncio.wait(
            {asyncio.ensure_future(call) for call in calls}, return_when="FIRST_COMPLETED"
        )
        (error,) = {one.exception().code() for one in refused[0]}
        assert error is grpc.StatusCode.RESOURCE_EXHAUSTED
        stage.workers.going.set()
        codes = [await call.code() for call in calls]
    assert codes.count(grpc.StatusCode.OK) == 2
