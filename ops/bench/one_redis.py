"""Where one Redis ends: the entries a second that its one thread carries, and what they make of steps.

    python -m ops.bench.one_redis [--out FILE] [--seconds N] [--pairs N [N ...]]

Pairs of processes, a sender and a receiver each, pass entries on through one Redis as the processes of a
deployment do: each entry is one XADD, and wakes a receiver that waits in XREAD. There are more and more
pairs, until Redis is busy all the time. An entry has the size that a step of 1, 32 or 256 sequences makes of
it. Senders and receivers do nothing else, so that a machine with few cores suffices to keep Redis busy.

A call is more than an entry: it is put at a door in a transaction, taken there, accepted and settled. What
one costs Redis is measured with the wire itself, with one call after the other.
"""

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ops.bench.command import parser
from ops.bench.record import write
from ops.bench.rig.peer import Peer
from ops.bench.rig.redis_load import ADDRESS
from ops.bench.rig.wire_peer import Question
from ops.bench.wire import Transport
from ops.launcher.redis_server import RedisServer
from proto.wire_pb2 import MESSAGE, Entry

BATCHES = (1, 32, 256)
"""Sequences of a step."""
PAIRS = (1, 2, 4, 8, 16)
SECONDS = 2.0
WARM_UP = 0.5
ENTRIES_A_STEP = 4
"""A plan, its result, tokens to the tokenizer, text to the gateway: if there is one process of each kind."""
CALLS_A_REQUEST = 2
"""Of the gateway to a tokenizer, and of the tokenizer to a scheduler."""
CALLS = 2000
MESSAGE_BYTES = 24
"""Of a token with what goes along with it."""
BUSY = 0.97
"""Of a core: Redis does not carry more."""


def entry_bytes(batch: int) -> int:
    """Bytes of an entry with a message for each of `batch` calls."""
    entry = Entry(sender="scheduler-00000000", epoch=1)
    for call in range(batch):
        entry.responses.add(call=1000 + call, seq=500, kind=MESSAGE, body=bytes(MESSAGE_BYTES))
    return entry.ByteSize()


def main_thread_seconds(pid: int) -> float:
    """CPU time of a process's first thread: Redis executes all commands in it."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pass_on(redis: RedisServer, pairs: int, batch: int, seconds: float) -> dict[str, float]:
    """What this number of pairs gets through."""
    assert redis.process is not None
    size = entry_bytes(batch)
    roles = [(role, f"load:{number}") for number in range(pairs) for role in ("receive", "send")]
    with ExitStack() as stack:
        peers = [  # a receiver makes the inbox of its sender
            stack.enter_context(
                Peer("ops.bench.rig.redis_load", role, inbox, str(size), **{ADDRESS: redis.url})
            )
            for role, inbox in roles
        ]
        for peer in peers:
            peer.send(f"{WARM_UP} {seconds}")
        time.sleep(WARM_UP)
        before, begun = main_thread_seconds(redis.process.pid), time.perf_counter()
        time.sleep(seconds)
        cpu, took = main_thread_seconds(redis.process.pid) - before, time.perf_counter() - begun
        counts = [tuple(map(int, peer.line().split())) for peer in peers]
    entries = sum(found for (role, _), (found, _) in zip(roles, counts, strict=True) if role == "send")
    replies = sum(found for (role, _), (_, found) in zip(roles, counts, strict=True) if role == "receive")
    rate, busy = entries / seconds, cpu / took
    return {
        "pairs": pairs,
        "entries_per_second": rate,
        "messages_per_second": rate * batch,
        "megabytes_per_second": rate * size / 1e6,
        "busy": busy,
        "cpu_us_per_entry": busy / rate * 1e6,
        "entries_per_read": entries / max(1, replies),
    }


def calls(redis: RedisServer, count: int) -> float:
    """CPU time of Redis for a unary call, µs."""
    assert redis.process is not None
    transport = Transport("redis", redis)
    try:
        transport.client.ask(Question("unary", 1, count // 10, bytes(64)).encode())
        before = main_thread_seconds(redis.process.pid)
        transport.client.ask(Question("unary", 1, count, bytes(64)).encode())
        return (main_thread_seconds(redis.process.pid) - before) / count * 1e6
    finally:
        transport.stop()


def limit(levels: Sequence[dict[str, float]], batch: int) -> dict[str, float]:
    """What one Redis carries at most, from the level at which it is busiest."""
    best = max(levels, key=lambda level: level["busy"])
    # Where senders and receivers take the cores, Redis is not busy all the time, and could carry more.
    entries = best["entries_per_second"] / min(1.0, best["busy"])
    steps = entries / ENTRIES_A_STEP
    return {
        "entries_per_second": entries,
        "megabytes_per_second": entries * entry_bytes(batch) / 1e6,
        "steps_per_second": steps,
        "tokens_per_second": steps * batch,
        "busy": best["busy"],
    }


def measure(pairs: Sequence[int], seconds: float, count: int = CALLS) -> dict[str, Any]:
    """All levels of all batch sizes, and what a call costs."""
    by_batch: dict[str, Any] = {}
    with RedisServer() as redis:
        for batch in BATCHES:
            levels: list[dict[str, float]] = []
            for number in pairs:
                levels.append(pass_on(redis, number, batch, seconds))
                if levels[-1]["busy"] >= BUSY:
                    break
            by_batch[str(batch)] = {
                "entry_bytes": entry_bytes(batch),
                "levels": levels,
                "limit": limit(levels, batch),
            }
        call = calls(redis, count)
    return {
        "entries_a_step": ENTRIES_A_STEP,
        "calls_a_request": CALLS_A_REQUEST,
        "by_batch": by_batch,
        "cpu_us_per_call": call,
        "requests_per_second": 1e6 / (call * CALLS_A_REQUEST),
    }


def table(results: dict[str, Any]) -> str:
    """The results for a person."""
    lines = []
    for batch, found in results["by_batch"].items():
        lines.append(f"entries of {batch} messages, {found['entry_bytes']} bytes")
        lines += [_line("", level) for level in found["levels"]] + [_line("limit", found["limit"])]
    call, requests = results["cpu_us_per_call"], results["requests_per_second"]
    return "\n".join([*lines, f"a call: {call:.0f} µs of Redis; {requests:,.0f} requests a second"])


def _line(name: str, figures: dict[str, float]) -> str:
    return f"{name:>8}  " + "  ".join(f"{figure} {value:,.2f}" for figure, value in figures.items())


def main() -> None:
    command = parser(__doc__)
    command.add_argument("--seconds", type=float, default=SECONDS, help="of each level")
    command.add_argument("--pairs", type=int, nargs="+", default=PAIRS)
    options = command.parse_args()
    results = measure(options.pairs, options.seconds)
    print(table(results))
    if options.out is not None:
        write(options.out, "one-redis", 0, results)


if __name__ == "__main__":
    main()
