"""Entries of streams: how they are written, and read from Redis's replies."""

from typing import Any

from proto.rpc.bounded_reader import size_of
from proto.rpc.bus import DEAD_LETTERS, DEAD_LETTERS_KEPT, MAX_ENTRY_BYTES, Batch, Received, inbox_of
from proto.rpc.resp import Command

FIELD = b"e"
"""The one field of an entry."""
GROUP = "replicas"


def commands_of(batch: Batch, prefix: str) -> list[Command]:
    """What writes a batch: one command for each entry, two for each call that is settled."""
    commands: list[Command] = [
        ("XADD", prefix + inbox_of(process_id), "NOMKSTREAM", "*", FIELD, payload)
        for process_id, payload in batch.entries
    ]
    for door, entry in batch.settled:
        commands += [("XACK", prefix + door, GROUP, entry), ("XDEL", prefix + door, entry)]
    for stream, entry, reason, payload in batch.letters:
        letter: Command = ("stream", stream, "id", entry, "reason", reason, "entry", payload)
        commands.append(("XADD", prefix + DEAD_LETTERS, "MAXLEN", "~", DEAD_LETTERS_KEPT, "*", *letter))
    # Redis wakes first who reads what was written last: a call goes on before its caller hears of it.
    commands += [("XADD", prefix + door, "*", FIELD, payload) for door, payload in batch.opens]
    return commands


def entries_of(reply: Any) -> list[Received]:
    """Entries of the one stream that was read; none if the read timed out."""
    return [entry_of(*entry) for entry in reply[0][1]] if reply else []


def entry_of(number: bytes, fields: Any, deliveries: int = 1) -> Received:
    """One entry of a stream, by its id and its fields. Its payload is None if it cannot be read."""
    if isinstance(fields, list) and len(fields) == 2 and fields[0] == FIELD:
        payload = fields[1]
        if isinstance(payload, bytes):
            return Received(number.decode(), payload, deliveries)
        return Received(number.decode(), None, deliveries, size_of(payload))
    return Received(number.decode(), None, deliveries)


def is_here(received: Received) -> bool:
    """Whether an entry was read, or never will be. Otherwise it comes when it is read again."""
    return not 0 < received.size <= MAX_ENTRY_BYTES


def text_members(members: list[bytes]) -> tuple[list[str], list[bytes]]:
    """The members of a set that are text, and the others."""
    texts, others = list[str](), list[bytes]()
    for one in members:
        try:
            texts.append(one.decode())
        except UnicodeDecodeError:
            others.append(one)
    return texts, others
