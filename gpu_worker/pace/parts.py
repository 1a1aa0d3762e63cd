"""Where the time of a step goes, by part: the calls of the back end that one thread makes.

Nothing is wrapped, so steps that are not timed cost nothing. Python tells of each call that is made and
returned from in this thread (`sys.setprofile`), which makes a step that is timed a little slower.
"""

import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

PRODUCTS, ATTENTION, SAMPLING, OTHER = "products", "attention", "sampling", "other"
"""Parts of a step. Other: norms, rotation, copies of blocks, and Python."""

_CLASSES = (
    *("Packed", "OneDnnLinear"),
    *("ReferenceLinear", "WideLinear", "ReferenceGated", "ReferenceMixture", "CpuMixture"),
)
"""Classes of back ends for CPUs that multiply with weights."""

_PART_OF = {
    **{f"{name}.{method}": PRODUCTS for name in _CLASSES for method in ("__call__", "add_to")},
    **{f"{name}.attend": ATTENTION for name in ("CpuStep", "ReferenceStep")},
    **{f"{name}.sample": SAMPLING for name in ("CpuKernels", "ReferenceKernels")},
}
"""The part that a call of a back end belongs to, with all that it calls, by the function's qualified name."""


class Parts:
    """Times parts of steps in the calling thread, within `with`. Times add up until `clear`."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """`now`: a clock, in seconds."""
        self._now = now
        self._inside: FrameType | None = None
        self._part, self._since = OTHER, 0.0
        self._begun = self._began_computing = 0.0
        self._before: Any = None
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.whole = self.computing = 0.0
        """Seconds within `with`, and those of them in which the thread had a core."""
        self.seconds = dict.fromkeys((PRODUCTS, ATTENTION, SAMPLING), 0.0)
        """Seconds of each part but `OTHER`."""

    @property
    def by_part(self) -> dict[str, float]:
        """Seconds of every part."""
        return {**self.seconds, OTHER: self.whole - sum(self.seconds.values())}

    def __enter__(self) -> None:
        self._before = sys.getprofile()
        self._inside = None
        self._begun, self._began_computing = self._now(), time.thread_time()
        sys.setprofile(self._notice)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(self._before)
        self.whole += self._now() - self._begun
        self.computing += time.thread_time() - self._began_computing

    def _notice(self, frame: FrameType, event: str, _: object) -> None:
        if self._inside is None:
            if event == "call" and (part := _PART_OF.get(frame.f_code.co_qualname)) is not None:
                self._inside, self._part, self._since = frame, part, self._now()
        elif frame is self._inside and event == "return":  # after an exception, too
            self.seconds[self._part] += self._now() - self._since
            self._inside = None
