"""A bounded memory."""

from collections.abc import Hashable


class Recent:
    """The last few thousand things that were added."""

    SIZE = 4096

    def __init__(self) -> None:
        self._things: dict[Hashable, None] = {}

    def add(self, thing: Hashable) -> None:
        self._things[thing] = None
        if len(self._things) > self.SIZE:
            del self._things[next(iter(self._things))]

    def __contains__(self, thing: object) -> bool:
        return thing in self._things

    def clear(self) -> None:
        self._things.clear()
