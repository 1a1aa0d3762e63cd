"""Where one Redis ends: what is counted, and what follows from it."""

import pytest

from ops.bench.one_redis import entry_bytes, limit, pass_on, table
from ops.launcher.redis_server import RedisServer
from proto.wire_pb2 import Entry


def test_every_entry_that_is_sent_is_counted_once(redis_server: RedisServer) -> None:
    found = pass_on(redis_server, pairs=2, batch=32, seconds=0.3)
    assert found["entries_per_second"] > 10
    assert found["messages_per_second"] == 32 * found["entries_per_second"]
    megabytes = found["entries_per_second"] * entry_bytes(32) / 1e6
    assert found["megabytes_per_second"] == pytest.approx(megabytes)
    assert 0 < found["busy"] < 1.2


def test_entries_grow_with_their_messages() -> None:
    assert entry_bytes(0) == Entry(sender="scheduler-00000000", epoch=1).ByteSize()
    assert entry_bytes(256) - entry_bytes(0) == pytest.approx(
        8 * (entry_bytes(32) - entry_bytes(0)), rel=0.05
    )


def test_the_limit_is_that_of_the_busiest_level() -> None:
    levels = [
        {"entries_per_second": 30_000.0, "busy": 0.5},
        {"entries_per_second": 20_000.0, "busy": 0.8},
    ]
    found = limit(levels, 32)
    assert found["entries_per_second"] == 25_000
    assert (found["steps_per_second"], found["tokens_per_second"]) == (6250, 200_000)
    # A little more than a core, as clocks tick: nothing is added to what was measured.
    assert limit([{"entries_per_second": 9.0, "busy": 1.02}], 1)["entries_per_second"] == 9
    results = {
        "by_batch": {"32": {"entry_bytes": 9, "levels": levels, "limit": found}},
        "cpu_us_per_call": 200.0,
        "requests_per_second": 2500.0,
    }
    assert "tokens_per_second 200,000.00" in table(results)
