"""Snapshots in Redis: of the processes that have one, and not for ever."""

import asyncio

from ops.runtime import metrics_store as module
from ops.runtime.metric_names import BY_NAME, DEAD_LETTERS, LEASES_LOST
from ops.runtime.metrics import parse
from ops.runtime.metrics_store import KEPT_SECONDS, MetricsStore, publish
from proto.rpc import Node, RedisBus
from proto.rpc.redis_bus import Line


async def test_the_newest_snapshot_is_read_until_it_runs_out(line: Line, prefix: str) -> None:
    store = MetricsStore(line, prefix)
    assert await store.read([]) == {}
    await store.write("a-1", b"old")
    await store.write("a-1", b"new")
    await store.write("b-1", b"other")
    assert await store.read(["a-1", "gone", "b-1"]) == {"a-1": b"new", "b-1": b"other"}
    (left,) = await line.execute(("TTL", f"{prefix}metrics:a-1"))
    assert 0 < left <= KEPT_SECONDS


async def test_a_process_publishes(redis_url: str, line: Line, prefix: str, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.01)
    async with Node(RedisBus(redis_url, prefix=prefix), service="gateway", lease_seconds=60) as node:
        node.own(publish(node, MetricsStore(Line(redis_url), prefix)), "what publishes")
        async with asyncio.timeout(60):
            while not (found := await MetricsStore(line, prefix).read([node.id])):
                await asyncio.sleep(0.01)
        values = parse(found[node.id], BY_NAME)
        assert values[LEASES_LOST.name] == values[DEAD_LETTERS.name] == {(): [0]}
        assert values["quire:process_cpu_seconds"][()][0] > 0
