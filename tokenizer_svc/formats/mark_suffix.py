"""Marks that end with a text of the model's own: Hunyuan writes `<tool_call:opensource>` for `<tool_call>`.

A format's name followed by such a text, as in `hy4:opensource`, is that format with these marks.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from tokenizer_svc.formats.entry import CallFormat, ThoughtFormat

Entry = TypeVar("Entry", CallFormat, ThoughtFormat)

_PLACE = re.compile(r"<arg_key([^>\s][^>]*)>")
_WRITTEN = re.compile(r"(:\w+)")
_QUOTED = re.compile(r"""['"](:\w+)['"]""")
_MARK = re.compile(r"(?<!\?P)(</?\w+)>")  # a group of a regular expression, as `(?P<name>…)`, is none
_NAME = re.compile(r"(\w+)(?::(\w+))?")


def without_suffix(template: str) -> tuple[str, str]:
    """The template with plain marks, and the text that it puts at the end of each; empty: none.

    Templates name the text once and fill it in: `{% set S = ':opensource' %}{{ '<arg_key{}>'.format(S) }}`.
    """
    if (place := _PLACE.search(template)) is None:
        return template, ""
    suffix = _WRITTEN.fullmatch(place[1]) or _QUOTED.search(template)
    if suffix is None:
        return template, ""
    return template.replace(f"{place[1]}>", ">"), suffix[1]


def named(table: Mapping[str, Entry], name: str) -> Entry | None:
    """The entry of this name, which may have a suffix; None if there is none."""
    found = _NAME.fullmatch(name)
    entry = table.get(found[1]) if found else None
    if found is None or entry is None or found[2] is None:
        return entry
    suffix = found[2]

    def marked(value: Any) -> Any:
        match value:
            case str():
                return _MARK.sub(rf"\1:{suffix}>", value)
            case tuple():
                return tuple(map(marked, value))
        return value

    changed = {field.name: marked(getattr(entry, field.name)) for field in fields(entry)}
    return replace(entry, **changed)
