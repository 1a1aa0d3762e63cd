"""Jobs: who may take one, who may write for it, and how many a tenant may have."""

import pytest

from gateway.behalf import Behalf
from gateway.errors import Overloaded, Unavailable
from gateway.upstream.job_queue import HELD, Job, JobQueue
from proto.rpc.line import Line

NORTH, SOUTH = Behalf("north", "digest", True), Behalf("south", "south", False)


@pytest.fixture
def queue(line: Line, prefix: str) -> JobQueue:
    return JobQueue(line, prefix, "test", 2)


async def holds(line: Line, job: Job) -> bool:
    """Whether a script may write with the job's lease."""
    script = HELD + "return held(ARGV[1], ARGV[2]) and 1 or 0"
    (found,) = await line.execute(("EVAL", script, 0, job.lease.key, job.lease.owner))
    return bool(found)


async def expire(line: Line, prefix: str, job_id: str) -> None:
    await line.execute(("ZADD", f"{prefix}jobs:test:open", 0, job_id))


async def test_a_job_is_taken_once_the_oldest_first(queue: JobQueue) -> None:
    await queue.add("b", NORTH)
    await queue.add("a", SOUTH)
    first, second = await queue.take(), await queue.take()
    assert first is not None
    assert second is not None
    assert (first.id, first.behalf, first.takes) == ("b", NORTH, 1)
    assert (second.id, second.behalf, second.tenant) == ("a", SOUTH, "south")
    assert await queue.take() is None


async def test_jobs_of_some_tenants_wait_on(queue: JobQueue) -> None:
    for name, behalf in (("a", NORTH), ("b", NORTH), ("c", SOUTH)):
        await queue.add(name, behalf)
    assert await queue.take(["north", "south"]) is None
    first, second = await queue.take(["north"]), await queue.take(["south"])
    assert (first and first.id, second and second.id) == ("c", "a")
    assert await queue.take(["north"]) is None


async def test_many_jobs_that_wait_on_do_not_hide_others(line: Line, prefix: str) -> None:
    """More than are looked at at once, and some whose records are gone."""
    queue = JobQueue(line, prefix, "test", 250)
    for number in range(250):
        await queue.add(f"{number:03}", NORTH)
    await queue.add("last", SOUTH)
    await line.execute(*(("DEL", f"{prefix}jobs:test:job:{number:03}") for number in range(50)))
    found = await queue.take(["north"])
    assert found is not None
    assert found.id == "last"
    (known,) = await line.execute(("ZCARD", f"{prefix}jobs:test:open"))
    assert known == 201


async def test_who_has_lost_the_lease_writes_nothing(queue: JobQueue, line: Line, prefix: str) -> None:
    await queue.add("a", NORTH)
    first = await queue.take()
    assert first is not None
    await expire(line, prefix, "a")
    assert await queue.renew(first)
    assert await queue.take() is None, "it was renewed"
    await expire(line, prefix, "a")
    second = await queue.take()
    assert second is not None
    assert second.takes == 2, "nothing was written in between"
    assert not await holds(line, first)
    assert not await queue.renew(first)
    assert not await queue.end(first)
    await queue.give_back(first)
    assert await queue.take() is None, "it was not the first one's to give"
    assert await holds(line, second)


async def test_what_is_written_is_progress(queue: JobQueue, line: Line, prefix: str) -> None:
    await queue.add("a", NORTH)
    for _ in range(3):
        job = await queue.take()
        assert job is not None
        assert job.takes == 1
        assert await holds(line, job)
        await queue.give_back(job)
        assert not await holds(line, job)


async def test_who_gives_a_job_back_has_not_died_of_it(queue: JobQueue) -> None:
    await queue.add("a", NORTH)
    for _ in range(3):
        job = await queue.take()
        assert job is not None
        assert job.takes == 1
        await queue.give_back(job)


async def test_a_job_is_seized_from_whoever_has_it(queue: JobQueue, line: Line) -> None:
    await queue.add("a", NORTH)
    working = await queue.take()
    assert working is not None
    assert await queue.seize("a", "south") is None
    assert await holds(line, working)
    job = await queue.seize("a", "north")
    assert job is not None
    assert await holds(line, job)
    assert not await holds(line, working)
    assert await queue.seize("b", "north") is None


async def test_a_tenant_has_so_many_at_most_and_nothing_is_left(
    queue: JobQueue, line: Line, prefix: str
) -> None:
    for name in ("a", "b"):
        await queue.add(name, NORTH)
    with pytest.raises(Overloaded, match="At most 2"):
        await queue.add("c", NORTH)
    await queue.add("d", SOUTH)
    job = await queue.take()
    assert job is not None
    assert await queue.end(job)
    await queue.add("c", NORTH)
    while (job := await queue.take()) is not None:
        assert await queue.end(job)
    (left,) = await line.execute(("KEYS", f"{prefix}*"))
    assert left == []


async def test_without_redis() -> None:
    with pytest.raises(Unavailable):
        await JobQueue(Line("redis://127.0.0.1:1"), "p:", "test", 1).take()
