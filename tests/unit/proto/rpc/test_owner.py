"""Tasks that live as long as their owner."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from proto.rpc.errors import TaskEnded
from proto.rpc.owner import Owner


async def forever() -> None:
    await asyncio.Event().wait()


async def returns() -> None:
    await asyncio.sleep(0)


async def fails() -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError


class Panic(BaseException):
    """As an extension in Rust raises it."""


async def panics() -> None:
    await asyncio.sleep(0)
    raise Panic


async def is_cancelled() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("work", "error"),
    [(fails, ZeroDivisionError), (panics, Panic), (returns, TaskEnded), (is_cancelled, TaskEnded)],
)
async def test_a_task_that_ends_unasked(work: Any, error: type[BaseException]) -> None:
    told: list[BaseException] = []
    async with Owner(told.append) as owner:
        other = owner.own(forever(), "another")
        owner.own(work(), "the one")
        with pytest.raises(error):
            await asyncio.wait_for(owner.ended(), 60)
        assert [type(one) for one in told] == [error]
        assert not other.done(), "the body decides what is done before the others end"
    assert other.cancelled()


async def test_a_task_that_may_end_and_one_that_is_cancelled_then() -> None:
    async with Owner() as owner:
        owner.own(returns(), "one", may_end=True)
        owner.own(forever(), "two", may_end=True).cancel()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(owner.ended(), 0.02)
        owner.own(fails(), "three", may_end=True)
        with pytest.raises(ZeroDivisionError):
            await owner.ended()


async def test_leaving_is_asking() -> None:
    told: list[BaseException] = []
    owner = Owner(told.append)

    async def ends_badly() -> None:
        try:
            await forever()
        finally:
            raise ZeroDivisionError

    async with owner:
        for work in (forever(), ends_badly()):
            owner.own(work, "a task")
        await asyncio.sleep(0)
    assert told == []


async def test_the_first_end_counts() -> None:
    works: list[Coroutine[Any, Any, None]] = [fails(), returns(), panics()]
    async with Owner() as owner:
        for number, work in enumerate(works):
            owner.own(work, f"task {number}")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await owner.ended()


async def test_an_end_without_a_task() -> None:
    told: list[BaseException] = []
    async with Owner(told.append) as owner:
        other = owner.own(forever(), "a task")
        for error in (ZeroDivisionError(), KeyError()):
            owner.end(error)
        with pytest.raises(ZeroDivisionError):
            await owner.ended()
        assert [type(one) for one in told] == [ZeroDivisionError]
        assert not other.done()
