"""Pages of the activations' own type in C++."""

from gpu_worker.kernels.cpu.kv.format import CpuFormat
from gpu_worker.kernels.reference.kv.plain import Plain


class CpuPlain(CpuFormat, Plain):
    """See `KvFormat`."""

    page_type = 0
