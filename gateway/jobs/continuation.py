"""The events of a response that is computed again, from where those end that are stored.

The texts are the same as before, by the seed. How they were cut into deltas is not: that depends on how fast
the tokens came. So a place in the stream is a number of whole events and, after these, a number of characters
of the deltas of each type: those of a thought and of its summary take turns.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

_OF_THE_JOB = ("response.created", "response.queued")
"""Events that come before the response is computed."""


@dataclass
class _Place:
    events: int = 0
    characters: Counter[str] = field(default_factory=Counter)
    """By the deltas' type."""
    logprobs: int = 0

    def pass_by(self, event: Json) -> None:
        if event["type"].endswith(".delta"):
            self.characters[event["type"]] += len(event["delta"])
            self.logprobs += len(event.get("logprobs", ()))
        else:
            self.events, self.characters, self.logprobs = self.events + 1, Counter(), 0


class Continuation:
    """Gives numbers to the events of one response."""

    def __init__(self) -> None:
        self.count = 0
        """Events that are stored."""
        self.last = ""
        """The type of the last one."""
        self._stored, self._computed = _Place(), _Place()

    def note(self, event: Json) -> None:
        """This event is stored."""
        self.count += 1
        self.last = event["type"]
        if self.last not in _OF_THE_JOB:
            self._stored.pass_by(event)

    def again(self) -> None:
        """The response is computed from its beginning."""
        self._computed = _Place()

    def rest(self, event: Json) -> Json | None:
        """What is new of a computed event, with its number; None if nothing is. It is then to be stored."""
        kind = event["type"]
        if kind in _OF_THE_JOB:
            return None
        before, stored = self._computed.events, self._stored
        characters = stored.characters[kind] - self._computed.characters[kind]
        logprobs = stored.logprobs - self._computed.logprobs
        self._computed.pass_by(event)
        if self._computed.events < stored.events:
            return None
        if self._computed.events == stored.events:
            if before < stored.events or not kind.endswith(".delta"):
                return None
            event = _cut(event, max(0, characters), max(0, logprobs))
            if not event["delta"] and not event.get("logprobs"):
                return None
        new = event | {"sequence_number": self.count}
        self.note(new)
        return new


def _cut(event: Json, characters: int, logprobs: int) -> Json:
    """A delta without what is at its beginning."""
    rest = event | {"delta": event["delta"][characters:]}
    return rest | {"logprobs": event["logprobs"][logprobs:]} if "logprobs" in event else rest
