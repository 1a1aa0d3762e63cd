"""Batches in Redis: what is written for one counts as progress, and nothing else does; and their room."""

import time

import pytest

from gateway.behalf import Behalf
from gateway.errors import Overloaded
from gateway.upstream.batch_store import KEPT_SECONDS, BatchStore, file_of
from gateway.upstream.file_store import FileStore
from gateway.upstream.job_queue import JobQueue
from proto.rpc.line import Line

INPUT = "file-" + "1" * 32
BATCH = {
    "id": "batch_" + "0" * 32,
    "input_file_id": INPUT,
    "in_progress_at": 1,
    "expires_at": int(time.time()) + 3600,
    "output_seconds": 600,
}


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
    batches = [BATCH | {"id": f"batch_{number:032}", "metadata": {"a": "x" * 30_000}} for number in range(3)]
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


async def test_a_batch_keeps_its_input_and_results_that_have_come_late(line: Line, prefix: str) -> None:
    """An input that would run out while it is read is kept, and an output from its newest result on."""
    files = FileStore(line, prefix, seconds=60, tenant_bytes=2**16, all_bytes=2**16)
    store, queue = BatchStore(line, prefix, files), JobQueue(line, prefix, "batch", 1)
    await files.put("t", {"id": INPUT, "expires_at": int(time.time()) + 60, "purpose": "batch"})
    later = {"id": "file-" + "2" * 32, "expires_at": int(time.time()) + 7200, "purpose": "batch"}
    await files.put("t", later)
    for given, expected in ((INPUT, BATCH["expires_at"]), (later["id"], later["expires_at"])):
        await store.put("t", BATCH | {"input_file_id": given})
        (ends,) = await line.execute(("ZSCORE", f"{prefix}files:ends", f"{given}:t"))
        assert int(ends) == pytest.approx(expected, abs=5)
    await queue.add(BATCH["id"], Behalf("t", "digest", True))
    job = await queue.take()
    assert job is not None
    output, places = file_of(BATCH["id"], "completed"), set()
    for number in range(3):
        await store.add_result("t", BATCH, job.lease, number, "completed", b"{}\n")
        assert [one async for one in files.ids("t", "batch_output", None, False)] == [output]
        found = await files.get("t", output)
        assert found is not None
        assert (found["bytes"], found["created_at"]) == (3 * (number + 1), BATCH["in_progress_at"])
        places |= {*await line.execute(("ZSCORE", f"{prefix}files:of:t", output))}
        await line.execute(("ZADD", f"{prefix}files:ends", "1", f"{output}:t"))  # it has run out
    assert len(places) == 1, "it stays where it is in lists"
    await files.delete("t", output)
    await store.add_result("t", BATCH, job.lease, 3, "completed", b"{}\n")
    assert await files.get("t", output) is None, "who deletes it does not want it"
