"""Verdicts on grammars: what a trial has found, under the hash of all that it depends on.

Each tokenizer keeps those that it met last (`MemoryVerdicts`). The tokenizers of a deployment share theirs
(`shared_verdicts.py`), so that a grammar is tried by one of them.
"""

import time
from collections import OrderedDict
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

LASTING_SECONDS = 86_400.0
"""How long a verdict is kept that follows from the grammar alone."""
PASSING_SECONDS = 60.0
"""How long a refusal for want of time or memory is kept. What a trial takes depends on the machine, and on
what runs beside it. If such a refusal were kept for a day, one bad moment would refuse a good grammar for a
day. If it were not kept, each replica would try a hostile grammar with each request for it."""
MOST_CHARACTERS = 1000
"""Of a reason."""
MOST_KEPT = 256
"""Verdicts that a process keeps."""


class Verdict(BaseModel):
    """What a trial has found: a grammar, or the reason why there is none."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: str | None = None
    """The grammar as the worker takes it. None: it was refused."""
    reason: str = Field("", max_length=MOST_CHARACTERS)
    """Why it was refused."""
    granted: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Of a refusal for want of time or memory: the processor time that the trial was granted, in seconds. 0:
    the verdict follows from the grammar alone."""
    until: float = Field(default_factory=lambda verdict: time.time() + _lifetime(verdict["granted"]))
    """When it is over: seconds since 1970. Part of what is shared, so that a copy lasts no longer."""
    local: bool = Field(False, exclude=True)
    """It was this process that failed, and perhaps not the grammar: no other process should know of it."""

    slow: str | None = Field(None, exclude=True)
    """Of a trial of calls that took too long: the function that it came to; empty: all together."""

    @property
    def holds(self) -> bool:
        """It is not over, and was not made by a clock that is far ahead."""
        return 0 < self.until - time.time() < _lifetime(self.granted) + 1

    def settles(self, seconds: float) -> bool:
        """Whether it holds, too, for a trial with this much processor time.

        An answer that goes on in another process is granted more than a new one. So it goes on even if a new
        one has been refused.
        """
        return not self.granted or self.granted >= seconds


def _lifetime(granted: float) -> float:
    return PASSING_SECONDS if granted else LASTING_SECONDS


class Verdicts(Protocol):
    """Keeps verdicts. It may forget any of them at any time, and never fails."""

    async def get(self, name: bytes) -> Verdict | None:
        """The verdict under a name, if there is one that holds. `name`: see `Grammars`."""

    async def put(self, name: bytes, verdict: Verdict) -> None:
        """Keep a verdict, in place of one with this name, until it is over or others need the room."""


class MemoryVerdicts:
    """The verdicts that a process has met last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Verdict] = OrderedDict()

    async def get(self, name: bytes) -> Verdict | None:
        """See `Verdicts.get`."""
        verdict = self._kept.get(name)
        if verdict is None or not verdict.holds:
            return None
        self._kept.move_to_end(name)
        return verdict

    async def put(self, name: bytes, verdict: Verdict) -> None:
        """See `Verdicts.put`."""
        self._kept[name] = verdict
        self._kept.move_to_end(name)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
