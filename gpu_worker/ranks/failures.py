"""Whether all ranks of a worker have raised an error in a step at the same place.

A place is the number of exchanges of data before it (`Group.exchanges`). Ranks that stopped at the same place
are in step with each other, and once they have forgotten all sequences they can go on.
"""

from threading import Condition


class Failures:
    """The places at which the other ranks have stopped. Any thread may call it."""

    def __init__(self, others: int) -> None:
        """`others`: number of the other ranks."""
        self._others = others
        self._resets = 0
        self._places: list[int] = []
        self._changed = Condition()

    def report(self, resets: int, place: int) -> None:
        """One more of the other ranks has raised an error. `resets`: RESET orders that it had carried out."""
        with self._changed:
            if resets == self._resets:  # otherwise it is of a call that is over
                self._places.append(place)
                self._changed.notify_all()

    def reset(self) -> None:
        """Forget the errors so far: all ranks forget all sequences."""
        with self._changed:
            self._resets += 1
            self._places.clear()

    def alike(self, place: int, patience: float) -> bool:
        """Whether all other ranks have stopped at `place`, or do so within `patience` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._places) >= self._others, patience)
            found, self._places = self._places, []
        return found == [place] * self._others
