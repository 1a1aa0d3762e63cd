"""Snapshots in Redis: of the processes that have one, and not for ever."""

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ops.launcher.redis_server import RedisServer
from ops.runtime import metrics_store as module
from ops.runtime.metric_names import (
    BY_NAME,
    DEAD_LETTERS,
    DOOR_CALLS,
    DOOR_WAIT,
    LEASES_LOST,
    REDIS_MEMORY,
    REDIS_UP,
    START_TIME,
)
from ops.runtime.metrics import Metrics, parse
from ops.runtime.metrics_store import KEPT_SECONDS, MetricsStore, publish, read_all
from proto.rpc import Node, RedisBus
from proto.rpc.bus import DoorState
from proto.rpc.line import Line


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
        assert values["quire:redis_memory_ratio"] == {(): [0]}
        assert abs(values[START_TIME.name]["gateway",][0] - time.time()) < 600


async def test_a_gateway_shows_its_own_values_though_redis_is_full(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """How full it is, and that it takes no writes, is among them."""
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.02)
    monkeypatch.setattr(module, "METRICS", Metrics())
    with RedisServer(directory=tmp_path) as server:
        line, store = Line(server.url), MetricsStore(Line(server.url), "quire:")

        async def shown(up: float, fills: Callable[[float | None], bool]) -> set[str]:
            """Processes on the page, once it says `up`, and how full Redis is is as wanted. None: unknown."""
            async with asyncio.timeout(60):
                while True:
                    found = await read_all(gateway, store)
                    own = parse(found[gateway.id], BY_NAME)
                    (ratio,) = own.get(REDIS_MEMORY.name, {}).get((), [None])
                    if own.get(REDIS_UP.name) == {(): [up]} and fills(ratio):
                        return set(found)
                    await asyncio.sleep(0.02)

        async with (
            Node(RedisBus(server.url), service="gateway", lease_seconds=1) as gateway,
            Node(RedisBus(server.url), service="worker", lease_seconds=60) as worker,
        ):
            gateway.own(publish(gateway, MetricsStore(Line(server.url), "quire:")), "what publishes")
            await store.write(worker.id, Metrics().snapshot())
            assert await shown(1, lambda ratio: ratio == 0) == {gateway.id, worker.id}
            await line.execute(("CONFIG", "SET", "maxmemory", 1))
            assert await shown(0, lambda ratio: ratio is not None and ratio > 1) <= {gateway.id, worker.id}
            await line.execute(("CONFIG", "SET", "maxmemory", 0))
            assert gateway.id in await shown(1, lambda ratio: ratio == 0)
            await asyncio.to_thread(server.kill)
            assert await shown(0, lambda ratio: ratio is None) == {gateway.id}
        for one in (line, store):
            one.close()


@pytest.mark.parametrize("most", [0, 2**30])
async def test_a_gateway_publishes_how_full_redis_is(line: Line, prefix: str, most: int) -> None:
    await line.execute(("CONFIG", "SET", "maxmemory", most))
    try:
        found = await MetricsStore(line, prefix).fullness()
        (memory,) = await line.execute(("INFO", "memory"))
    finally:
        await line.execute(("CONFIG", "SET", "maxmemory", "0"))
    used = re.search(rb"used_memory:(\d+)", memory)
    assert used is not None
    assert found == pytest.approx(int(used[1]) / most if most else 0, rel=0.02)


async def test_a_process_shows_what_lies_at_its_doors(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Calls that wait or are pending, the oldest of them, and how long those that it took had waited."""
    metrics = Metrics()
    monkeypatch.setattr(module, "METRICS", metrics)
    server = SimpleNamespace(service="Tokenizer", pool="m")

    async def look() -> list[tuple[SimpleNamespace, DoorState]]:
        return [(server, DoorState(4, 2, 1.5))]

    await module._look_at_doors(SimpleNamespace(look=look))  # type: ignore[arg-type]
    for seconds in (0.002, 3.0):
        module._measure_wait(server, seconds)  # type: ignore[arg-type]
    values = parse(metrics.snapshot(), BY_NAME)
    assert values[DOOR_CALLS.name] == {
        ("m", "Tokenizer", "waiting"): [4],
        ("m", "Tokenizer", "pending"): [2],
    }
    assert values["quire:door_oldest_seconds"] == {("m", "Tokenizer"): [1.5]}
    *counts, total = values[DOOR_WAIT.name]["m", "Tokenizer"]
    assert (sum(counts), total) == (2, 3.002)
