"""The ranks of a worker as a process group of torch.distributed: NCCL between GPUs, gloo between CPUs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from gpu_worker.machine.cores import neighbouring, restrict_to, usable


class Group:
    """See `Ranks`. A process has at most one, because torch.distributed keeps its group in a global."""

    def __init__(self, rank: int, count: int, device: torch.device, place: int) -> None:
        """Join the group. Returns when all ranks have joined.

        `place`: descriptor of the file through which the ranks find each other; see `meeting_place`.
        """
        self.rank, self.count = rank, count
        self.exchanges = 0
        """Number of exchanges of data among all ranks. Those of a recorded step are one."""
        self._device = device
        if device.type == "cuda":
            torch.cuda.set_device(rank)
        os.environ.setdefault(
            "GLOO_SOCKET_IFNAME", "lo"
        )  # by default gloo takes the interface of the host's name
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, f"file:///proc/self/fd/{place}", rank=rank, world_size=count)

    def sum(self, tensor: Tensor) -> Tensor:
        self.exchanges += 1
        dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> Tensor:
        self.exchanges += 1
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        dist.all_gather(parts, tensor)
        return torch.cat(parts, dim=1)

    def least(self, number: int) -> int:
        self.exchanges += 1
        found = torch.tensor(number, device=self._device)
        dist.all_reduce(found, dist.ReduceOp.MIN)
        return int(found)

    def count_replay(self) -> None:
        self.exchanges += 1

    def close(self) -> None:
        """Leave the group; on GPUs only the process's end does, because NCCL would wait for ended ranks."""
        if self._device.type != "cuda":
            dist.destroy_process_group()


def meeting_place() -> int:
    """The descriptor of a file in memory through which the ranks of a worker find each other.

    Only processes that inherit the descriptor can open the file, and the file ends with them. It stays open
    because torch.distributed reads it until the end.
    """
    return os.memfd_create("ranks")


@contextmanager
def own_cores(rank: int, count: int, threads: int) -> Iterator[None]:
    """Restrict back ends that are made within the context to the rank's own cores.

    This is done if the threads of all ranks together take all cores of the process. Otherwise the system
    distributes the threads. A rank's cores lie beside each other: of two ranks on two sockets each has one.
    """
    found = usable()
    if len(found) == count * threads:
        restrict_to(neighbouring(found)[rank * threads : (rank + 1) * threads])
    try:
        yield
    finally:
        restrict_to(found)
