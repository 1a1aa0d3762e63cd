"""Whether a worker gets on: one that owes a result and says nothing for long has stalled.

A worker whose process dies or is stopped loses its lease. One whose device hangs keeps it, until its own
watchdog ends it (`gpu_worker/watchdog.py`). Until then nobody else would know.
"""

LOOK_SECONDS = 5.0
"""Time between two looks."""
STALLED_SECONDS = 30.0
"""Time without a word after which a worker has stalled."""
MARGIN = 3
"""A step may take this many times as long as the longest step so far, if that is more."""


class Progress:
    """Of one worker. Looks are counted, so time in which this process was stopped does not count."""

    def __init__(self) -> None:
        self._quiet = 0
        """Looks since it said something."""
        self._longest = 0.0

    def said(self, step_seconds: float = 0.0) -> None:
        """The worker has said something. `step_seconds`: how long the step took whose result it was."""
        self._quiet = 0
        self._longest = max(self._longest, step_seconds)

    def look(self, owes: bool) -> None:
        """To be called every `LOOK_SECONDS`. `owes`: whether the worker has been given a step and no result
        has come."""
        self._quiet = self._quiet + 1 if owes else 0

    @property
    def stalled(self) -> bool:
        """Whether it has owed a result for too long."""
        # The first look may have come right after the step was given.
        return (self._quiet - 1) * LOOK_SECONDS >= max(STALLED_SECONDS, MARGIN * self._longest)
