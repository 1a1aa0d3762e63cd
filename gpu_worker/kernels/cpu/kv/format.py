"""What the C++ kernels ask of a format of pages."""

from gpu_worker.kernels.attention import LayerCache


class CpuFormat:
    """A `KvFormat` that the library knows. Pages that are not shared lie in vectors: see `src/pages.h`."""

    page_type: int
    """What the library calls it: `PageType` in `src/pages.h`."""


def page_type(cache: LayerCache) -> int:
    """What the library calls the format of these pages."""
    assert isinstance(cache.format, CpuFormat)
    return cache.format.page_type
