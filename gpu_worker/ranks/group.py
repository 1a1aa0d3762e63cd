"""Ranks as processes joined by torch.distributed: NCCL between GPUs, gloo between CPUs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


class Group:
    """See `Ranks`. One in a process at a time, because torch.distributed keeps its own in a global."""

    def __init__(self, rank: int, count: int, device: torch.device, place: int) -> None:
        """Returns when all have come. `place`: where they find each other; see `meeting_place`."""
        self.rank, self.count = rank, count
        self._device = device
        if device.type == "cuda":
            torch.cuda.set_device(rank)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # not whatever the host's name leads to
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, f"file:///proc/self/fd/{place}", rank=rank, world_size=count)

    def sum(self, tensor: Tensor) -> Tensor:
        dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(parts, tensor)
        return torch.cat(parts, dim=1)

    def least(self, number: int) -> int:
        found = torch.tensor(number, device=self._device)
        dist.all_reduce(found, dist.ReduceOp.MIN)
        return int(found)

    def close(self) -> None:
        """Leave the group. NCCL would wait there for ranks that have ended; it ends with the process."""
        if self._device.type != "cuda":
            dist.destroy_process_group()


def meeting_place() -> int:
    """The descriptor of a file in memory, through which the ranks of a worker find each other.

    Only processes that inherit it can open it, and nothing of it is left behind. It stays open, because
    torch.distributed reads it until the end.
    """
    return os.memfd_create("ranks")


@contextmanager
def own_cores(rank: int, count: int, threads: int) -> Iterator[None]:
    """Show back ends made in the block only the rank's own cores.

    Does so if the threads of all ranks together take all cores of the process; otherwise the system decides.
    """
    found = sorted(os.sched_getaffinity(0))
    if len(found) == count * threads:
        os.sched_setaffinity(0, found[rank * threads : (rank + 1) * threads])
    try:
        yield
    finally:
        os.sched_setaffinity(0, found)
