"""The grammars that one worker holds: which sequences use them, and which have been compiled.

    first use                      the worker says that it has compiled it
    ──▶ in a plan, with a number ──▶ rows may sample ──▶ no sequence uses it ──▶ in a plan: dropped
                                                         up to `MOST_IDLE` are kept

A grammar comes to the worker in the plan that gives the first sequence with it a slot. The worker compiles it
beside its steps. Until that is done, sequences with it compute their known tokens but the last, and sample
nothing. So no step waits for a grammar. The grammars themselves are handed on unread.
"""

from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from scheduler_svc.core.errors import IntegrityError

MOST_IDLE = 64
"""Grammars that a worker keeps although no sequence uses them."""


class NewGrammar(NamedTuple):
    """A grammar that the worker does not have yet."""

    number: int
    """By which plans and the worker name it; above 0."""
    grammar: bytes
    """The packed message."""


@dataclass(slots=True)
class _Held:
    number: int
    users: int = 0
    """Sequences with a slot that have this grammar."""
    compiled: bool = False


class Grammars:
    """The grammars of one worker, as they are after the newest plan."""

    def __init__(self) -> None:
        self._held: dict[bytes, _Held] = {}
        """Those that the worker has."""
        self._idle: dict[bytes, None] = {}
        """Those of them that no sequence uses, the one that was used last at the end."""
        self._numbers = count(1)
        self._added: list[NewGrammar] = []
        self._dropped: list[int] = []

    @property
    def in_use(self) -> bool:
        """Whether a sequence with a slot has a grammar."""
        return len(self._held) > len(self._idle)

    def take(self, grammar: bytes) -> None:
        """A sequence with this grammar has got a slot."""
        held = self._held.get(grammar)
        if held is None:
            held = self._held[grammar] = _Held(next(self._numbers))
            self._added.append(NewGrammar(held.number, grammar))
        self._idle.pop(grammar, None)
        held.users += 1

    def release(self, grammar: bytes) -> None:
        """A sequence with this grammar has lost its slot."""
        held = self._held[grammar]
        held.users -= 1
        if held.users:
            return
        self._idle[grammar] = None
        if len(self._idle) > MOST_IDLE:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            self._dropped.append(self._held.pop(oldest).number)

    def number(self, grammar: bytes) -> int:
        """The number of a grammar that the worker has; 0 for that of a sequence without one."""
        return self._held[grammar].number if grammar else 0

    def compiled(self, number: int) -> None:
        """The worker has compiled a grammar. Nothing happens if it has been dropped meanwhile."""
        for held in self._held.values():
            if held.number == number:
                held.compiled = True

    def ready(self, grammar: bytes) -> bool:
        """Whether the grammar of a sequence with a slot has been compiled. True without one."""
        return not grammar or self._held[grammar].compiled

    def take_changes(self) -> tuple[tuple[int, ...], tuple[NewGrammar, ...]]:
        """The numbers of grammars dropped since this was called before, and the grammars added."""
        dropped, added = tuple(self._dropped), tuple(self._added)
        self._dropped.clear()
        self._added.clear()
        return dropped, added

    def check_integrity(self, used: list[bytes]) -> None:
        """Raise `IntegrityError` unless `used` are the grammars of the sequences with a slot."""
        users = {grammar: held.users for grammar, held in self._held.items() if held.users}
        if users != {grammar: used.count(grammar) for grammar in used}:
            raise IntegrityError("a grammar has another number of users than sequences with a slot")
        if self._idle.keys() != self._held.keys() - users.keys() or len(self._idle) > MOST_IDLE:
            raise IntegrityError(f"{len(self._idle)} grammars are kept that no sequence uses")
