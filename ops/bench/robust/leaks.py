"""What a deployment holds: memory, descriptors and threads of each process, and what there is in Redis."""

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import redis

from proto.rpc.bus import GIVEN_BACK

SLACK = {"descriptors": 3, "threads": 3, "stream entries": 16, "keys": 2}
"""By how many an idle deployment may have more than before. The libraries' pools open connections and threads
when they are needed, and keep some; entries are those of the latest heartbeats."""


@dataclass(frozen=True)
class Held:
    """What an idle deployment holds, by process or by kind of key: descriptors, threads, entries."""

    counts: Mapping[str, int]

    def more_than(self, before: "Held") -> dict[str, tuple[int, int]]:
        """What there is more of than before, beyond the slack: (before, now)."""
        found = {}
        for name, now in self.counts.items():
            then = before.counts.get(name, 0)
            slack = next((value for kind, value in SLACK.items() if name.endswith(kind)), 0)
            if now > then + slack:
                found[name] = (then, now)
        return found


def held(processes: Mapping[str, int], connection: redis.Redis, prefix: str) -> Held:
    """What the processes (ids by name) and the keys of their Redis hold now."""
    counts: dict[str, int] = {}
    for name, pid in processes.items():
        process = psutil.Process(pid)
        counts[f"{name} descriptors"] = process.num_fds()
        counts[f"{name} threads"] = process.num_threads()
    counts.update(_in_redis(connection, prefix))
    return Held(counts)


def unaccepted(door: str, consumers: Iterable[Mapping[str, Any]]) -> int:
    """Calls at a door that were given to a process and not accepted since. `consumers`: as Redis lists them.

    At the workers' door, where each scheduler keeps a call waiting for one more worker, those that were given
    back wait as well as the others.
    """
    waits = GIVEN_BACK.encode() if "calls:Worker:" in door else None
    return sum(each["pending"] for each in consumers if each["name"] != waits)


def pending_calls(connection: redis.Redis, prefix: str) -> dict[str, int]:
    """The doors that have unaccepted calls, and how many."""
    found = {}
    for key in connection.scan_iter(f"{prefix}calls:*"):
        for group in connection.xinfo_groups(key):
            door, consumers = key.decode(), connection.xinfo_consumers(key, group["name"])
            if count := unaccepted(door, consumers):
                found[door] = count
    return found


def _in_redis(connection: redis.Redis, prefix: str) -> dict[str, int]:
    keys = [key.decode() for key in connection.scan_iter(f"{prefix}*")]
    found = {
        "all keys": len(keys),
        "leases": sum(key.startswith(f"{prefix}alive:") for key in keys),
        "pending calls": sum(pending_calls(connection, prefix).values()),
        "all stream entries": 0,
    }
    for key in keys:
        if connection.type(key) != b"stream":
            continue
        found["all stream entries"] += int(connection.xlen(key))
    return found


@dataclass
class Memory:
    """Memory of its own (USS) of each process over time."""

    seconds: list[float] = field(default_factory=list)
    mib: dict[str, list[float]] = field(default_factory=dict)

    def sample(self, processes: Mapping[str, int]) -> None:
        """Note what each process (ids by name) has now."""
        self.seconds.append(time.monotonic())
        for name, pid in processes.items():
            self.mib.setdefault(name, []).append(psutil.Process(pid).memory_full_info().uss / 2**20)

    def slopes(self, warm_up: float) -> dict[str, float]:
        """MiB an hour by which each process grows, after the first `warm_up` seconds."""
        return {name: slope(*self._after(warm_up, values)) * 3600 for name, values in self.mib.items()}

    def growth(self, warm_up: float) -> dict[str, float]:
        """MiB that each process has at the end beyond what it had after `warm_up` seconds."""
        return {name: kept[-1] - kept[0] for name, kept in self._kept(warm_up).items()}

    def _kept(self, warm_up: float) -> dict[str, Sequence[float]]:
        return {name: self._after(warm_up, values)[1] for name, values in self.mib.items()}

    def _after(self, warm_up: float, values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
        first = next(place for place, at in enumerate(self.seconds) if at - self.seconds[0] >= warm_up)
        return self.seconds[first:], values[first:]


def slope(xs: Iterable[float], ys: Iterable[float]) -> float:
    """The slope of the line through the points whose squared distances are least; 0 for fewer than two."""
    points = list(zip(xs, ys, strict=True))
    if len(points) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*points, strict=True)).slope
