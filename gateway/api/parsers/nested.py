"""Calls that are elements throughout, as of MiniMax M3: arguments, members of objects and items of lists.

A special token, the mark, stands before each tag. So the text of an element may have any characters, `<` too.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.api.parsers.schema_types import part_of, types_in
from gateway.api.parsers.written_values import value_of

_TAG = re.compile(r"<(?P<end>/?)(?P<name>[^<>\n]+)>(?P<text>.*)", re.DOTALL)
_CALL = re.compile(r'invoke name="([^<>"\n]+)"')
_ITEM = "item"


@dataclass
class _Element:
    name: str
    text: str
    """What stands before the first element in it."""
    inner: list["_Element"] = field(default_factory=list)


def calls_in(text: str, mark: str, functions: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name and the arguments of each call. `functions`: schemas by name. Raises `ValueError`."""
    for element in _tree(text, mark).inner:
        call = _CALL.fullmatch(element.name)
        if call is None or element.text.strip():
            raise ValueError("it is no call")
        name = call[1].strip()
        root = functions.get(name, {})
        yield name, {one.name: _value(one, part_of(root, root, one.name), root) for one in element.inner}


def _tree(text: str, mark: str) -> _Element:
    before, *pieces = text.split(mark)
    root = _Element("", before)
    is_open = [root]
    for piece in pieces:
        tag = _TAG.match(piece)
        if tag is None:
            raise ValueError("a mark without a tag")
        if not tag["end"]:
            is_open.append(_Element(tag["name"], tag["text"]))
            is_open[-2].inner.append(is_open[-1])
        elif tag["text"].strip() or tag["name"] not in ((name := is_open.pop().name), name.partition(" ")[0]):
            raise ValueError("another element ends")
    if len(is_open) != 1 or before.strip():
        raise ValueError("an element has no end")
    return root


def _value(element: _Element, schema: object, root: Mapping[str, Any]) -> object:
    """`schema`: that of the value, a part of `root`."""
    types = types_in(schema, root)
    if not element.inner:
        if not element.text.strip() and "string" not in types and types & {"array", "object"}:
            return [] if "array" in types else {}
        return value_of(element.text, types)
    if element.text.strip() or types == {"string"}:
        raise ValueError("a text and elements")
    # An object that lists no `item` is hardly one whose only member has that name.
    may_be_list = "object" not in types or (
        "array" in types and not isinstance(part_of(schema, root, _ITEM), dict)
    )
    if may_be_list and all(one.name == _ITEM for one in element.inner):
        items = part_of(schema, root)
        return [_value(one, items, root) for one in element.inner]
    return {one.name: _value(one, part_of(schema, root, one.name), root) for one in element.inner}
