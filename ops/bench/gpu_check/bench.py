"""What all parts of the check share: the device, its rates, how time is taken and how much of it is left."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from gpu_worker.kernels.triton.graphs.graphs import recorder

SEED = 0
TURNS = 5
COPIED = 1 << 30
"""Bytes of the copy that gives the bandwidth: far more than a cache holds."""
SIDE = 8192
"""Of the matrices whose product gives the rate of arithmetic."""

T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True)
class Rates:
    """What everything else is compared with; 0: not measured."""

    bandwidth: float = 0.0
    """Bytes a second that a copy reads and writes."""
    matrix: float = 0.0
    """Operations a second in a product of bfloat16."""


@dataclass
class Findings:
    """What came of a part."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Of each table."""
    wrong: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        for table, rows in other.rows.items():
            self.rows.setdefault(table, []).extend(rows)
        self.wrong += other.wrong
        self.left_out += [what for what in other.left_out if what not in self.left_out]


@dataclass
class Bench:
    """A part of the check, as the process sees it that does it."""

    deadline: float
    """On `time.monotonic`'s clock."""
    rates: Rates = Rates()
    shard: tuple[int, int] = (0, 1)
    """Number of this process, and how many of them share the part's work."""
    compiling: bool = False
    """Nothing is measured: all is done once, so that kernels are compiled."""

    def prepare(self, tell: Callable[[Findings], None] = lambda _: None) -> Findings:
        """Take the device. What is found goes into what is returned, and with each row to `tell`."""
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dry = self.device.type == "cpu"
        self.name = "interpreter" if self.dry else torch.cuda.get_device_name(self.device)
        self.generator = torch.Generator(self.device).manual_seed(SEED)
        self.found, self._tell = Findings(), tell
        return self.found

    def note(self, table: str, row: Row) -> None:
        """A result; what is measured on the way to compiled kernels is none."""
        if not self.compiling:
            self.found.rows.setdefault(table, []).append(row)
            self._tell(self.found)

    def own_share(self, cases: Sequence[T]) -> Sequence[T]:
        """Those that fall to this process."""
        number, count = self.shard
        return cases[number::count]

    def has_time(self, what: str, seconds: float = 5.0) -> bool:
        """Whether `seconds` seconds are left; if not, `what` is noted as left out."""
        if time.monotonic() + seconds < self.deadline:
            return True
        if not self.compiling and what not in self.found.left_out:
            self.found.left_out.append(what)
        return False

    def has_memory(self, size: float) -> bool:
        """Whether `size` bytes are free, with some to spare."""
        if self.dry:
            return size < 1 << 28
        gc.collect()  # runners refer to themselves
        torch.cuda.empty_cache()
        return size * 1.1 + (2 << 30) < torch.cuda.mem_get_info(self.device)[0] / self.shard[1]

    def expect(self, holds: bool, what: str) -> bool:
        """Note what does not hold."""
        if not holds:
            self.found.wrong.append(what)
        return holds

    def seconds(self, work: Callable[[], object]) -> float:
        """Of the fastest turn. On a GPU the work is recorded and replayed: the host's time is not in it."""
        work()
        if self.compiling:
            return 1.0
        return self.fastest(work if self.dry else recorder()(work))

    def fastest(self, replay: Callable[[], object]) -> float:
        """Seconds of the fastest turn of what has been recorded."""
        if self.dry:
            began = time.perf_counter()
            replay()
            return time.perf_counter() - began
        best = float("inf")
        for _ in range(TURNS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            replay()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1000)
        return best


def measure_rates(bench: Bench) -> None:
    """Measure what everything else is compared with, and how far this GPU goes."""
    size, side = (1 << 20, 64) if bench.dry else (COPIED, SIDE)
    source = torch.empty(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    bandwidth = 2 * size / bench.seconds(lambda: target.copy_(source))
    left, right = (torch.randn(side, side, device=bench.device).bfloat16() for _ in range(2))
    matrix = 2 * side**3 / bench.seconds(lambda: left @ right)
    bench.note("rates", {"device": bench.name, "copy B/s": bandwidth, "matrix op/s": matrix})
