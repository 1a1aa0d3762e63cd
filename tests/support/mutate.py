"""Messages and JSON that are almost right, made from good ones.

Every case has a random generator of its own, made from the reader's name and the case's number: a case that
fails can be had again by its number.
"""

import json
import os
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

CASES = int(os.environ.get("TEST_FUZZ", "180"))
"""Cases for each reader."""
MAX_SECONDS = 5.0
"""Processor time of one case: many times of what the slowest takes, and a fraction of a hang."""
MAX_GROWTH = 400 * 2**20
"""Bytes by which all cases of one reader may make the process grow."""

M = TypeVar("M", bound=Message)

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    63,
    64,
    255,
    256,
    2**15,
    2**31 - 1,
    -(2**31),
    2**32 - 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, 3.4e38, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "²",
    "-1",
    "NaN",
    "9" * 5000,
    "\x00",
    "a" * 100_000,
    "😀",
    "../..",
    "%s",
    "{{ 1/0 }}",
    "\u202e",
    "\x7f",
)
JUNK: tuple[Any, ...] = (
    *(None, True, False, "", "²", "\ud800", "9" * 5000, "\x00", [], {}, [[]], {"": None}),
    *(
        0,
        -1,
        2**31,
        2**53,
        2**63,
        2**64,
        10**400,
        1e308,
        float("inf"),
        float("-inf"),
        float("nan"),
        -0.0,
        1e-320,
    ),
)


class Case(random.Random):
    """The choices of one case."""

    def __init__(self, reader: str, number: int) -> None:
        super().__init__(f"{reader} {number}")
        self.reader, self.number = reader, number

    def __repr__(self) -> str:
        return f"Case({self.reader!r}, {self.number})"


def cases(reader: str, count: int = CASES) -> Iterator[Case]:
    """The cases of a reader, from 1. It is an error if one takes too long, or all of them too much memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(1, count + 1):
        began, case = time.process_time(), Case(reader, number)
        yield case
        taken = time.process_time() - began
        assert taken < MAX_SECONDS, f"{case} took {taken:.1f} s"
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < MAX_GROWTH, f"{reader}: the process has grown by {grown >> 20} MiB"


def spoiled(of: Case, message: Message, others: Sequence[bytes] = ()) -> bytes:
    """A message as bytes that are wrong in one or several ways, most often in ways that can be decoded."""
    copy = type(message)()
    copy.CopyFrom(message)
    for _ in range(of.choice((1, 1, 1, 2, 4))):
        _spoil_field(of, copy)
    data = copy.SerializeToString()
    return spoiled_bytes(of, data, others) if of.random() < 0.3 else data


def spoiled_bytes(of: Case, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Bytes with some of them changed, lost, repeated, moved or taken from elsewhere."""
    found = bytearray(data)
    for _ in range(of.choice((1, 1, 2, 8))):
        at, length = of.randrange(len(found) + 1), of.choice((1, 1, 2, 4, 16, 64))
        match of.randrange(6):
            case 0:
                found[at : at + 1] = bytes([of.randrange(256)])
            case 1:
                del found[at : at + length]
            case 2:
                found[at:at] = of.randbytes(length)
            case 3:
                found[at:at] = found[of.randrange(len(found) + 1) :][:length]
            case 4:
                found[at:at] = of.choice(
                    (b"\xff" * 10, b"\x00" * 4, b"\x1a\x00" * 500, b"\xff\xff\xff\xff\x0f")
                )
            case 5 if others:
                found[at:] = of.choice(others)[at:]
    return bytes(found)


def spoiled_json(of: Case, value: Any, text: bool = True) -> bytes:
    """A JSON document with one or several values replaced; now and then it is no JSON. `text`: UTF-8 only."""
    document = json.loads(json.dumps(value))
    for _ in range(of.choice((1, 1, 1, 2, 4))):
        document = _replaced(of, document)
    if of.random() < 0.03:
        depth = of.choice((100, 1000, 50_000))
        return b'{"a":' * depth + b"1" + b"}" * depth
    data = json.dumps(document).encode()
    if not text and of.random() < 0.2:
        return spoiled_bytes(of, data)
    if of.random() < 0.1:
        return spoiled_bytes(of, data)
    return data


def _replaced(of: Case, value: Any) -> Any:
    if isinstance(value, dict) and value and of.random() < 0.8:
        key = of.choice(list(value))
        match of.randrange(8):
            case 0:
                return {name: each for name, each in value.items() if name != key}
            case 1:
                return {**value, of.choice(("", "x", "\ud800", "__class__", key + "s")): of.choice(JUNK)}
            case _:
                return {**value, key: _replaced(of, value[key])}
    if isinstance(value, list) and value and of.random() < 0.8:
        at = of.randrange(len(value))
        if of.random() < 0.2:
            return value * of.choice((0, 2, 50))
        return [*value[:at], _replaced(of, value[at]), *value[at + 1 :]]
    return of.choice(JUNK)


def _spoil_field(of: Case, message: Message) -> None:
    field = of.choice(message.DESCRIPTOR.fields)
    present = [each for each, _ in message.ListFields()]
    if present and of.random() < 0.7:
        field = of.choice(present)
    if of.random() < 0.1:
        message.ClearField(field.name)
    elif field.is_repeated:
        _spoil_list(of, message, field)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        _spoil_field(of, getattr(message, field.name))
    else:
        _set(of, field, getattr(message, field.name), lambda value: setattr(message, field.name, value))


def _spoil_list(of: Case, message: Message, field: FieldDescriptor) -> None:
    values = getattr(message, field.name)
    if hasattr(values, "GetEntryClass"):  # a map, whose values are messages
        _spoil_field(of, values[of.choice([*values, "f"])])
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        if values and of.random() < 0.7:
            _spoil_field(of, of.choice(values))
        elif values and of.random() < 0.5:
            values.extend([of.choice(values)] * of.choice((1, 3)))
        else:
            values.add()
    elif values and of.random() < 0.5:
        at = of.randrange(len(values))
        _set(of, field, values[at], lambda value: values.__setitem__(at, value))
    else:
        _set(of, field, None, values.append)


def _set(of: Case, field: FieldDescriptor, now: Any, put: Callable[[Any], None]) -> None:
    kind = field.cpp_type
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        value: Any = of.choice(FLOATS)
    elif kind == FieldDescriptor.CPPTYPE_BOOL:
        value = of.random() < 0.5
    elif field.type == FieldDescriptor.TYPE_BYTES:
        value = _array(of, now or b"")
    elif kind == FieldDescriptor.CPPTYPE_STRING:
        value = of.choice(TEXTS)
    else:
        value = of.choice(NUMBERS)
    try:
        put(value)
    except ValueError:  # out of the type's range
        put(of.randrange(128))


def _array(of: Case, now: bytes) -> bytes:
    """A packed array with a number changed, or of another length."""
    match of.randrange(5):
        case 0:
            return spoiled_bytes(of, now)
        case 1:
            return now * 2
        case 2:
            return now[: of.randrange(len(now) + 1)]
        case _:
            number = of.choice(NUMBERS) % 2**32
            at = of.randrange(len(now) // 4 + 1) * 4
            return now[:at] + number.to_bytes(4, "little") + now[at + 4 :]
