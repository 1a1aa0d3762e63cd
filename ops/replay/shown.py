"""A difference between two messages for a person."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from proto import arrays, arrays_pb2

MOST = 16
"""Numbers of an array that are shown, from shortly before the first difference on."""
BEFORE = 3


def differences(recorded: Message, now: Message, name: str = "") -> Iterator[str]:
    """A line for each field in which two messages of one type differ."""
    field: Any
    for field in recorded.DESCRIPTOR.fields:
        one, other, path = getattr(recorded, field.name), getattr(now, field.name), f"{name}{field.name}"
        if one == other:
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE and not field.is_repeated:
            yield from differences(one, other, f"{path}.")
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if len(one) != len(other):
                yield f"{path}: {len(one)} recorded, {len(other)} now"
            for number, (mine, its) in enumerate(zip(one, other, strict=False)):
                yield from differences(mine, its, f"{path}[{number}].")
        elif dtype := field.GetOptions().Extensions[arrays_pb2.dtype]:
            yield from _arrays(path, arrays.unpack(one, dtype), arrays.unpack(other, dtype))
        else:
            yield f"{path}: {one!r} recorded, {other!r} now"


def _arrays(path: str, one: Any, other: Any) -> Iterator[str]:
    pairs = enumerate(zip(one, other, strict=False))
    place = next((at for at, (mine, its) in pairs if mine != its), min(len(one), len(other)))
    begin = max(0, place - BEFORE)
    mine, its = (", ".join(map(str, each[begin : begin + MOST])) for each in (one, other))
    yield f"{path}, from number {begin} on: {mine or 'nothing'} recorded, {its or 'nothing'} now"
