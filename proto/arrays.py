"""Arrays of numbers in messages: packed, unpacked and checked as the contracts declare them.

A contract says which numbers a field of type bytes holds, `[(dtype) = INT32]`, and that the arrays of a
message are columns of one length, `option (table) = true` (arrays.proto). All that is done here follows from
these options: a new field needs no code. Bytes are little-endian whatever the machine is.
"""

import struct
import sys
from array import array
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from proto import arrays_pb2
from proto.arrays_pb2 import FLOAT32, INT32, UINT8, DType

__all__ = ["FLOAT32", "INT32", "UINT8", "ArrayError", "check", "fill", "pack", "pack_one", "unpack"]

_CODES = {INT32: "i", UINT8: "B", FLOAT32: "f"}
"""The type code of each dtype, for `struct` and for `array`."""

pack_one = struct.Struct("<i").pack
"""One number as an array of int32."""


class ArrayError(ValueError):
    """A message's arrays are not what the contract says; the text names the field."""


def pack(numbers: Sequence[float], dtype: DType = INT32) -> bytes:
    """Numbers as a packed array. Raises `struct.error` or `ValueError` for one that its type cannot hold."""
    return _pack(numbers, _CODES[dtype])


def unpack(packed: bytes, dtype: DType = INT32) -> "array[Any]":
    """The numbers of a packed array. Raises `ArrayError` if the bytes are not a whole number of them."""
    numbers = array(_CODES[dtype])
    if len(packed) % numbers.itemsize:
        raise ArrayError(f"{len(packed)} bytes are no array of {numbers.itemsize}-byte numbers")
    numbers.frombytes(packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def fill(message: Message, value: object) -> None:
    """Set a message's arrays and tables from the attributes of `value` with the same names.

    An attribute for an array is a sequence of numbers; one for a table is a named tuple of columns. Empty
    arrays and tables are left out.
    """
    layout = _layout(message.DESCRIPTOR)
    for name, code, _ in layout.arrays:
        if numbers := getattr(value, name):
            setattr(message, name, _pack(numbers, code))
    for name, columns in layout.tables:
        lines = getattr(value, name)
        if lines[0]:
            table = getattr(message, name)
            for column, code, _ in columns:
                setattr(table, column, _pack(getattr(lines, column), code))


def check(message: Message) -> None:
    """Check all arrays of a message and of the messages in it. Raises `ArrayError`.

    Each must be a whole number of numbers; the arrays of a table must be of one length.
    """
    _check(message, _layout(message.DESCRIPTOR), "")


def _pack(numbers: Sequence[float], code: str) -> bytes:
    if code == "B":
        return bytes(numbers)  # type: ignore[arg-type]
    if isinstance(numbers, array) and numbers.typecode == code and sys.byteorder == "little":
        return numbers.tobytes()
    return struct.pack(f"<{len(numbers)}{code}", *numbers)


_Arrays = tuple[tuple[str, str, int], ...]
"""Name, type code and bytes of a number of each array of a message."""


class _Layout(NamedTuple):
    """The arrays of a type of message and of the messages in it."""

    arrays: _Arrays
    is_table: bool
    tables: tuple[tuple[str, _Arrays], ...]
    """Name of each field with a table, and the table's columns."""
    messages: dict[str, "_Layout"]
    """By name of the field: messages with arrays, tables among them."""


@cache
def _layout(descriptor: Descriptor) -> _Layout:
    arrays, messages = list[tuple[str, str, int]](), dict[str, _Layout]()
    tables = list[tuple[str, _Arrays]]()
    for field in descriptor.fields:
        if code := _CODES.get(_option(field, arrays_pb2.dtype)):
            arrays.append((field.name, code, struct.calcsize(f"<{code}")))
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            inner = _layout(field.message_type)
            if inner.arrays or inner.messages:
                messages[field.name] = inner
            if inner.is_table and not field.is_repeated:
                tables.append((field.name, inner.arrays))
    is_table = bool(_option(descriptor, arrays_pb2.table))
    return _Layout(tuple(arrays), is_table, tuple(tables), messages)


def _option(of: Descriptor | FieldDescriptor, extension: Any) -> Any:
    """An option of arrays.proto; its default where the contract does not give it."""
    return of.GetOptions().Extensions[extension]


def _check(message: Any, layout: _Layout, place: str) -> None:
    """`place`: prefix of the fields' names, such as "rows."."""
    lengths = []
    for name, _, size in layout.arrays:
        length = len(getattr(message, name))
        if length % size:
            raise ArrayError(f"{place}{name}: {length} bytes are no array of {size}-byte numbers")
        lengths.append(length // size)
    if layout.is_table and lengths.count(lengths[0]) < len(lengths):
        columns = zip(lengths, layout.arrays, strict=True)
        found = ", ".join(f"{length} {name}" for length, (name, *_) in columns)
        raise ArrayError(f"{place.rstrip('.')}: columns differ in length: {found}")
    if layout.messages:
        for field, value in message.ListFields():
            if inner := layout.messages.get(field.name):
                for each in value if field.is_repeated else (value,):
                    _check(each, inner, f"{place}{field.name}.")
