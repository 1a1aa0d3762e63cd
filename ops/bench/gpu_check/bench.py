"""What all parts of the check share: the device, its rates, how time is taken and how much of it is left."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

SEED = 0
TURNS = 5
COPIED = 1 << 30
"""Bytes of the copy that gives the bandwidth: far more than a cache holds."""
SIDE = 8192
"""Of the matrices whose product gives the rate of arithmetic."""


@dataclass
class Bench:
    """A run of the check."""

    deadline: float
    """On `time.monotonic`'s clock."""
    wrong: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    bandwidth: float = 0.0
    """Bytes a second that a copy reads and writes."""
    matrix: float = 0.0
    """Operations a second in a product of bfloat16."""

    def __post_init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dry = self.device.type == "cpu"
        self.name = "interpreter" if self.dry else torch.cuda.get_device_name(self.device)
        self.generator = torch.Generator(self.device).manual_seed(SEED)

    def has_time(self, what: str, seconds: float = 5.0) -> bool:
        """Whether so many seconds are left; if not, `what` is noted as left out."""
        if time.monotonic() + seconds < self.deadline:
            return True
        if what not in self.left_out:
            self.left_out.append(what)
        return False

    def has_memory(self, size: float) -> bool:
        """Whether so many bytes are free, with some to spare."""
        if self.dry:
            return size < 1 << 28
        gc.collect()  # runners refer to themselves
        torch.cuda.empty_cache()
        return size * 1.1 + (2 << 30) < torch.cuda.mem_get_info(self.device)[0]

    def expect(self, holds: bool, what: str) -> bool:
        """Note what does not hold."""
        if not holds:
            self.wrong.append(what)
        return holds

    def rates(self) -> dict[str, float]:
        """Measure what everything else is compared with."""
        size, side = (1 << 20, 64) if self.dry else (COPIED, SIDE)
        source = torch.empty(size, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        self.bandwidth = 2 * size / self.seconds(lambda: target.copy_(source))
        left, right = (torch.randn(side, side, device=self.device).bfloat16() for _ in range(2))
        self.matrix = 2 * side**3 / self.seconds(lambda: left @ right)
        return {"copy GB/s": round(self.bandwidth / 1e9, 1), "matrix TFLOP/s": round(self.matrix / 1e12, 1)}

    def seconds(self, work: Callable[[], object]) -> float:
        """Of the fastest turn. On a GPU the work is recorded and replayed: the host's time is not in it."""
        work()
        if self.dry:
            began = time.perf_counter()
            work()
            return time.perf_counter() - began
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        graph.replay()
        best = float("inf")
        for _ in range(TURNS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            best = min(best, begin.elapsed_time(end) / 1000)
        return best
