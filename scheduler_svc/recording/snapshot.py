"""Values of the core as plain data, and made anew of it.

`take` copies what can be reached from a value: objects of `scheduler_svc.core`, the containers of the
standard library, and sampling parameters. Two references to one object stay two references to one object.
Lists and dictionaries of numbers and names are copied as a whole, so a large pool of blocks costs little.
`encode` makes bytes of a copy, and may take its time. `decode` makes new values of bytes that anyone may have
written: JSON, of which nothing but classes of the core becomes an object, and no code runs.
"""

import base64
import importlib
import json
from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import count
from types import MethodType, NoneType
from typing import Any

from proto.sampling_pb2 import SamplingParams
from scheduler_svc.core.account import Account
from scheduler_svc.core.blocks import BlockPool
from scheduler_svc.core.lookup import Lookup, Prediction
from scheduler_svc.core.sequence import Sequence, SequenceGroup

CORE = "scheduler_svc.core."
_SCALARS = frozenset({NoneType, bool, int, float, str, bytes})
_LEFT_OUT = {(SequenceGroup, "watch"), (BlockPool, "watches"), (Lookup, "_after"), (Prediction, "_places")}
"""Attributes that are of no use elsewhere, or are made anew: see `_repair`."""
_LISTS: dict[str, Callable[[Iterable[Any]], Any]] = {"list": list, "set": set, "deque": deque}
_SERIES = frozenset({list, set, deque, tuple, frozenset})
_FIXED: dict[str, Callable[[Iterable[Any]], Any]] = {"tuple": tuple, "frozenset": frozenset}
_DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "OrderedDict": OrderedDict}

Node = tuple[Any, ...]
"""One value that is no scalar: its kind, and what it consists of."""


@dataclass(frozen=True, slots=True)
class _Ref:
    """Stands for the node of this number."""

    node: int


class Snapshot:
    """A copy, which later changes of the original do not reach. The first node is the value itself."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes

    def encode(self) -> bytes:
        """As `decode` reads it."""
        return json.dumps(self._nodes, default=_plain, separators=(",", ":")).encode()


def take(value: object, *, accounts: bool = True) -> Snapshot:
    """Copy a value and all that can be reached from it. `accounts`: with the accounts of tenants and users.

    Raises `TypeError` for a value of a type that the core does not use.
    """
    objects: list[Any] = [value]
    numbers: dict[int, _Ref] = {id(value): _Ref(0)}

    def part(each: Any) -> Any:
        if type(each) in _SCALARS:
            return each
        if type(each) is Account and not accounts:
            return None
        found = numbers.get(id(each))
        if found is None:
            found = numbers[id(each)] = _Ref(len(objects))
            objects.append(each)
        return found

    def parts(each: Iterable[Any]) -> list[Any]:
        some = list(each)
        return some if _SCALARS.issuperset(map(type, some)) else [part(one) for one in some]

    return Snapshot([_node(each, part, parts) for each in objects])  # which grow meanwhile


def decode(data: bytes) -> Any:
    """The value that was copied. Raises `ValueError` for what `encode` does not write."""
    try:
        return _Reader(json.loads(data)).first()
    except (TypeError, LookupError, AttributeError, RecursionError, OverflowError, ImportError) as error:
        raise ValueError(f"no snapshot: {error!r}") from None


def _node(value: Any, part: Callable[[Any], Any], parts: Callable[[Iterable[Any]], list[Any]]) -> Node:
    kind: Any = type(value)
    name = kind.__name__
    if kind in _SERIES:
        return name, parts(value)
    if kind in (dict, OrderedDict):
        return name, parts(value.keys()), parts(value.values())
    if kind is defaultdict:
        return "dict", parts(value.keys()), parts(value.values())
    if kind is array:
        return "array", value.typecode, value.tobytes()
    if kind is count:
        return "count", int(repr(value)[len("count(") : -1])
    if kind is SamplingParams:
        return "sampling", value.SerializeToString()
    if kind is MethodType:
        return "method", part(value.__self__), value.__name__
    if not kind.__module__.startswith(CORE):
        raise TypeError(f"a {kind.__module__}.{name} cannot be recorded")
    if isinstance(value, Enum):
        return "enum", _path(kind), value.name
    if issubclass(kind, tuple):
        return "named", _path(kind), parts(value)
    names = _slots(kind)
    if not names:
        attributes = {name: each for name, each in vars(value).items() if (kind, name) not in _LEFT_OUT}
        return "object", _path(kind), list(attributes), parts(attributes.values())
    try:
        return "object", _path(kind), names, parts([getattr(value, one) for one in names])
    except AttributeError:  # some are not set yet
        names = tuple(one for one in names if hasattr(value, one))
        return "object", _path(kind), names, parts([getattr(value, one) for one in names])


@cache
def _path(kind: type) -> str:
    return f"{kind.__module__.removeprefix(CORE)}:{kind.__name__}"


@cache
def _slots(kind: type) -> tuple[str, ...]:
    """Names of a class's slots. None of them has other attributes besides."""
    every = (name for each in kind.__mro__ for name in getattr(each, "__slots__", ()))
    return tuple(name for name in every if (kind, name) not in _LEFT_OUT)


def _plain(value: Any) -> Any:
    """What JSON cannot spell: references are lists of one number, and bytes are an object."""
    if type(value) is _Ref:
        return [value.node]
    return {"bytes": base64.b64encode(value).decode()}


class _Reader:
    """Makes values of nodes, each once."""

    def __init__(self, nodes: list[Node]) -> None:
        self._nodes = nodes
        self._made: dict[int, Any] = {}

    def first(self) -> Any:
        """The value of the first node, whole."""
        numbers = range(len(self._nodes))
        made = [self._make(number) for number in numbers]
        for number in numbers:
            self._fill(number)
        for each in made:
            _repair(each)
        return made[0]

    def _part(self, part: Any) -> Any:
        if isinstance(part, list):
            (number,) = part
            return self._make(number)
        return base64.b64decode(part["bytes"]) if isinstance(part, dict) else part

    def _parts(self, parts: list[Any]) -> list[Any]:
        return [self._part(one) for one in parts]

    def _make(self, number: int) -> Any:
        """A value. What can change is empty at first, so that values may refer to each other."""
        if number in self._made:
            return self._made[number]
        kind, *rest = self._nodes[number]
        made: Any
        if kind in _LISTS:
            made = _LISTS[kind](())
        elif kind in _FIXED:
            made = _FIXED[kind](self._parts(rest[0]))
        elif kind in _DICTS:
            made = _DICTS[kind]()
        elif kind == "array":
            made = array(rest[0], self._part(rest[1]))
        elif kind == "count":
            made = count(int(rest[0]))
        elif kind == "sampling":
            made = SamplingParams.FromString(self._part(rest[0]))
        elif kind == "method":
            made = _method(self._part(rest[0]), rest[1])
        elif kind == "enum":
            made = _class_at(rest[0], Enum)[rest[1]]
        elif kind == "named":
            made = _class_at(rest[0], tuple)(*self._parts(rest[1]))
        else:
            made = object.__new__(_class_at(rest[0], object))
        self._made[number] = made
        return made

    def _fill(self, number: int) -> None:
        made, (kind, *rest) = self._made[number], self._nodes[number]
        if kind in ("list", "deque"):
            made.extend(self._parts(rest[0]))
        elif kind == "set":
            made.update(self._parts(rest[0]))
        elif kind in _DICTS:
            made.update(zip(self._parts(rest[0]), self._parts(rest[1]), strict=True))
        elif kind == "object":
            for name, part in zip(rest[1], rest[2], strict=True):
                object.__setattr__(made, name, self._part(part))  # some are frozen


def _class_at(path: str, base: type) -> Any:
    """A class of the core, and nothing else."""
    module, _, name = path.partition(":")
    found = getattr(importlib.import_module(CORE + module), name)
    if not (isinstance(found, type) and issubclass(found, base) and found.__module__ == CORE + module):
        raise ValueError(f"{path} is no such class of the core")
    return found


def _method(of: Any, name: str) -> MethodType:
    if not type(of).__module__.startswith(CORE):
        raise ValueError(f"{name} is no method of the core")
    return MethodType(getattr(type(of), name), of)


def _repair(made: Any) -> None:
    """Make anew what was left out."""
    if isinstance(made, SequenceGroup):
        made.watch = None
    elif isinstance(made, BlockPool):
        made.watches = []
    elif isinstance(made, Sequence) and made.draft_state is not None:
        made.draft_state.lookup = made.draft_state.lookup.anew(made.tokens)
        if made.draft_state.prediction is not None:
            made.draft_state.prediction = made.draft_state.prediction.anew()
