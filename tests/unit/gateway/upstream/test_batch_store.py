"""Batches in Redis: what is written for one counts as progress, and nothing else does; and their room."""

import time

import pytest

from gateway.behalf import Behalf
from gateway.errors import Overloaded
from gateway.upstream.batch_store import KEPT_SECONDS, BatchStore
from gateway.upstream.file_store import FileStore
from gateway.upstream.job_queue import JobQueue
from proto.rpc.line import Line

BATCH = {"id": "batch_" + "0" * 32, "output_seconds": 600}


async def test_a_result_without_room_is_no_progress(line: Line, prefix: str) -> None:
    queue = JobQueue(line, prefix, "batch", 1)
    await queue.add(BATCH["id"], Behalf("t", "digest", True))
    job = await queue.take()
    assert job is not None

    async def takes() -> int:
        (found,) = await line.execute(("HGET", job.lease.key, "takes"))
        return int(found)

    for room, after in ((1, 1), (2**20, 0)):
        files = FileStore(line, prefix, seconds=60, tenant_bytes=room, all_bytes=room)
        store = BatchStore(line, prefix, files)
        if after:
            with pytest.raises(Overloaded):
                await store.add_result("t", BATCH, job.lease, 0, "completed", b"{}\n")
        else:
            await store.add_result("t", BATCH, job.lease, 0, "completed", b"{}\n")
        assert await takes() == after


async def test_batches_take_the_room_of_files(line: Line, prefix: str) -> None:
    """Two have room for their metadata. What is deleted takes none."""
    files = FileStore(line, prefix, seconds=60, tenant_bytes=2**16, all_bytes=2**16)
    store = BatchStore(line, prefix, files)
    batches = [{"id": f"batch_{number:032}", "metadata": {"a": "x" * 30_000}} for number in range(3)]
    for batch in batches[:2]:
        await store.put("t", batch)
        await store.put("t", batch | {"status": "completed"})
    with pytest.raises(Overloaded, match="room"):
        await store.put("t", batches[2])
    assert [one async for one in store.ids("t", None, newest_first=False)] == [
        one["id"] for one in batches[:2]
    ]
    await store.delete("t", batches[0]["id"])
    await store.put("t", batches[2])
    for batch in batches[1:]:
        await store.delete("t", batch["id"])
    (left,) = await line.execute(("KEYS", f"{prefix}*"))
    assert left == []


async def test_a_batch_that_has_run_out_is_not_found(line: Line, prefix: str) -> None:
    """Redis may have it until the next file comes."""
    store = BatchStore(line, prefix, FileStore(line, prefix, seconds=60, tenant_bytes=2**16, all_bytes=2**16))
    for seconds, kept in ((KEPT_SECONDS - 60, True), (KEPT_SECONDS, False)):
        batch = BATCH | {"created_at": int(time.time()) - seconds, "request_counts": {}}
        await store.put("t", batch)
        assert (await store.get("t", batch["id"]) is not None) == kept
