"""Pages of int8 in C++."""

from gpu_worker.kernels.cpu.kv.format import CpuFormat
from gpu_worker.kernels.reference.kv.int8 import Int8


class CpuInt8(CpuFormat, Int8):
    """See `KvFormat`."""

    page_type = 1
