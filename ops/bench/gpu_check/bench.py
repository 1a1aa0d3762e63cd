"""What all parts of the check share: the device, its rates, timing, and the deadline."""

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from gpu_worker.kernels.triton.graphs.graphs import recorder

SEED = 0
TURNS = 5
"""Times that a measurement is repeated; the fastest counts."""
COPIED = 1 << 30
"""Bytes of the copy, and of the sum, that give the bandwidth: far more than a cache holds."""
SIDE = 8192
"""Rows and columns of the matrices whose product gives the matrix rate."""

T = TypeVar("T")
Row = dict[str, Any]


@dataclass(frozen=True)
class Rates:
    """Rates of the GPU, with which results are compared. 0: not measured."""

    bandwidth: float = 0.0
    """Bytes per second: those that a copy reads and writes, or those that a sum reads, whichever are more."""
    matrix: float = 0.0
    """Floating-point operations per second in a matrix product in bfloat16."""


@dataclass
class Findings:
    """The results of a part, or of several."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    """Rows of each table of measurements, by the table's name."""
    wrong: list[str] = field(default_factory=list)
    """A line for each check that failed."""
    left_out: list[str] = field(default_factory=list)
    """Names of checks and measurements that were left out, and why."""

    def add(self, other: "Findings") -> None:
        """Add the results of another part or process."""
        for table, rows in other.rows.items():
            self.rows.setdefault(table, []).extend(rows)
        self.wrong += other.wrong
        self.left_out += [what for what in other.left_out if what not in self.left_out]


@dataclass
class Bench:
    """The tools of a process that runs a part of the check."""

    deadline: float
    """Time at which the part must end, on `time.monotonic`'s clock."""
    rates: Rates = Rates()
    """Rates of the GPU."""
    shard: tuple[int, int] = (0, 1)
    """Number of this process, and the number of processes that share the part's work."""
    compiling: bool = False
    """Whether work is done once without timing, so that its kernels are compiled."""

    def prepare(self, tell: Callable[[Findings], None] = lambda _: None) -> Findings:
        """Choose the device. Returns the results to be; `tell` gets them with each new row."""
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dry = self.device.type == "cpu"
        self.name = "interpreter" if self.dry else torch.cuda.get_device_name(self.device)
        self.generator = torch.Generator(self.device).manual_seed(SEED)
        self.found, self._tell = Findings(), tell
        return self.found

    def note(self, table: str, row: Row) -> None:
        """Add a row to a table. Does nothing while kernels are compiled."""
        if not self.compiling:
            self.found.rows.setdefault(table, []).append(row)
            self._tell(self.found)

    def own_share(self, cases: Sequence[T]) -> Sequence[T]:
        """The cases that this process handles, of those that the shards share."""
        number, count = self.shard
        return cases[number::count]

    def has_time(self, what: str, seconds: float = 5.0) -> bool:
        """Whether `seconds` seconds are left. If not, `what` is listed as left out."""
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
        """Record `what` as wrong unless `holds` is true. Returns `holds`."""
        if not holds:
            self.found.wrong.append(what)
        return holds

    def seconds(self, work: Callable[[], object]) -> float:
        """Seconds of the fastest turn. On a GPU a CUDA graph is timed, so the host's time does not count."""
        if self.dry:
            return 1.0 if self.compiling else self.fastest(work)  # interpreted, not compiled
        work()
        if self.compiling:
            return 1.0
        return self.fastest(recorder()(work))

    def fastest(self, replay: Callable[[], object]) -> float:
        """Seconds of the fastest turn of recorded work."""
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
    """Measure the GPU's bandwidth and matrix rate."""
    size, side = (1 << 20, 64) if bench.dry else (COPIED, SIDE)
    source = torch.empty(size, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    copied = 2 * size / bench.seconds(lambda: target.copy_(source))
    numbers = source.zero_().view(torch.float32)
    read = size / bench.seconds(numbers.sum)
    left, right = (torch.randn(side, side, device=bench.device).bfloat16() for _ in range(2))
    matrix = 2 * side**3 / bench.seconds(lambda: left @ right)
    bench.note("rates", {"device": bench.name, "copy B/s": copied, "read B/s": read, "matrix op/s": matrix})
