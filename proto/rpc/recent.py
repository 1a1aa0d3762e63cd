"""The last few thousand of something, such as the calls that have ended."""

from collections.abc import Hashable


class Recent:
    """A set that forgets what was added first, once it has more than `SIZE` members."""

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
