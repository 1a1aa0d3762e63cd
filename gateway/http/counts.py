"""Counts what a body consists of before any object is made of it.

A body of 24 MiB can spell 960,000 messages, each of which takes fifty times its bytes in memory.
"""

import re

from gateway.errors import BadRequest

MAX_CONTAINERS = 2**14
"""Objects and lists: four for each message of the longest conversation."""
MAX_MEMBERS = 2**16
"""Members of all objects."""
MAX_STRINGS = 2**17
"""Strings, names of members among them."""
MAX_ITEMS = 2**20
"""Commas: more than there are between the token ids of any prompt."""

# The closing quote is optional: a body that ends within a string is matched at once, instead of tried again
# from each of its quotes.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def check_counts(raw: bytes) -> None:
    """Raises `BadRequest` if the JSON text `raw` has more parts than any request needs."""
    if _few(raw):
        return
    strings = containers = members = items = end = 0
    for string in _STRING.finditer(raw):
        strings += 1
        # Between two strings there are a few characters, or a list of numbers.
        between, end = raw[end : string.start()], string.end()
        containers += between.count(b"{") + between.count(b"[")
        members += between.count(b":")
        items += between.count(b",")
        if strings > MAX_STRINGS or containers > MAX_CONTAINERS or members > MAX_MEMBERS or items > MAX_ITEMS:
            break
    last = raw[end:] if strings <= MAX_STRINGS else b""
    containers += last.count(b"{") + last.count(b"[")
    _refuse("objects and lists", containers, MAX_CONTAINERS)
    _refuse("members of objects", members + last.count(b":"), MAX_MEMBERS)
    _refuse("strings", strings, MAX_STRINGS)
    _refuse("items", items + last.count(b","), MAX_ITEMS)


def _few(raw: bytes) -> bool:
    """Whether there are not too many parts, even if no such character were within a string."""
    return (
        raw.count(b"{") + raw.count(b"[") <= MAX_CONTAINERS
        and raw.count(b":") <= MAX_MEMBERS
        and raw.count(b'"') <= MAX_STRINGS
        and raw.count(b",") <= MAX_ITEMS
    )


def _refuse(parts: str, count: int, most: int) -> None:
    if count > most:
        raise BadRequest(f"The body has more than {most} {parts}.", code="invalid_value")
