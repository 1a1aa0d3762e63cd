"""What grows is seen: slopes, and counts beyond what may come and go."""

import os
import threading

import pytest
import redis

from ops.bench.robust.leaks import Held, Memory, held, pending_calls, slope
from proto.rpc import RedisBus


def test_slope() -> None:
    assert slope([1, 2, 3, 4], [5, 7, 9, 11]) == pytest.approx(2)
    assert slope([0, 1, 2, 3], [1, -1, 1, -1]) == pytest.approx(-0.4)
    assert slope([1], [5]) == 0


def test_memory_before_the_warm_up_does_not_count() -> None:
    memory = Memory([100.0, 110.0, 120.0, 130.0], {"worker": [1.0, 50.0, 51.0, 52.0]})
    assert memory.slopes(10)["worker"] == pytest.approx(360)  # a MiB in ten seconds
    assert memory.growth(10) == {"worker": 2.0}
    memory.sample({"worker": os.getpid()})
    assert memory.mib["worker"][-1] > 5


def test_what_is_left_behind() -> None:
    before = Held({"gateway descriptors": 20, "pending calls": 0, "leases": 4, "all stream entries": 3})
    after = Held({"gateway descriptors": 24, "pending calls": 1, "leases": 4, "all stream entries": 9})
    assert after.more_than(before) == {"gateway descriptors": (20, 24), "pending calls": (0, 1)}
    assert before.more_than(after) == {}


async def test_what_was_given_back_waits_at_the_workers_door_and_nowhere_else(redis_url: str) -> None:
    prefix, doors = "pending-test:", ("calls:Worker:m", "calls:Scheduler:m")
    connection, link = (
        redis.Redis.from_url(redis_url, socket_timeout=60),
        await RedisBus(redis_url, prefix).connect("worker-1"),
    )
    await link.take_lease(b"{}", 60)
    for door in doors:
        connection.xadd(f"{prefix}{door}", {"e": "1"})
        await link.join(door)
    assert pending_calls(connection, prefix) == {}
    taken = {door: [one.id for one in await link.take(door, 1)] for door in doors}
    assert pending_calls(connection, prefix) == {f"{prefix}{door}": 1 for door in doors}
    for door, ids in taken.items():
        await link.give_back(door, ids)
    assert pending_calls(connection, prefix) == {f"{prefix}calls:Scheduler:m": 1}
    await link.close(goodbye=True)
    connection.delete(*connection.scan_iter(f"{prefix}*"))
    connection.close()


def test_counting_processes_and_streams(redis_url: str, tmp_path) -> None:
    connection = redis.Redis.from_url(redis_url, socket_timeout=60)
    prefix, me = "leaks-test:", {"me": os.getpid()}
    connection.set(f"{prefix}alive:me", "1")
    connection.xadd(f"{prefix}inbox:me", {"e": "1"})
    connection.xadd(f"{prefix}calls:Door", {"e": "1"})
    connection.xgroup_create(f"{prefix}calls:Door", "g", "0")
    before = held(me, connection, prefix)
    assert before.counts["leases"] == 1
    assert before.counts["all stream entries"] == 2
    assert before.counts["pending calls"] == 0
    connection.xreadgroup("g", "c", {f"{prefix}calls:Door": ">"})
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(5)]
    for each in threads:
        each.start()
    files = [(tmp_path / str(number)).open("w") for number in range(5)]
    more = held(me, connection, prefix).more_than(before)
    end.set()
    for file in files:
        file.close()
    for each in threads:
        each.join()
    connection.delete(*connection.scan_iter(f"{prefix}*"))
    connection.close()
    assert more.keys() == {"me descriptors", "me threads", "pending calls"}
