"""Which suffix the marks of a template have, and entries with it."""

import re

import pytest

from tokenizer_svc.formats.call_table import CALLS
from tokenizer_svc.formats.mark_suffix import named, without_suffix
from tokenizer_svc.formats.thought_table import THOUGHTS


@pytest.mark.parametrize(
    ("template", "plain", "suffix"),
    [
        ("<arg_key:a1></arg_key:a1><think:a1>", "<arg_key></arg_key><think>", ":a1"),
        ("{% set S = ':a' %}{{ '<arg_key{}><think{}>'.format(S, S) }}", None, ":a"),
        ("<arg_key></arg_key> ':a'", "<arg_key></arg_key> ':a'", ""),
        ("<arg_key{}>", "<arg_key{}>", ""),
        ("<arg_key> < arg_key:a> <arg_key", "<arg_key> < arg_key:a> <arg_key", ""),
    ],
)
def test_the_suffix_of_a_template(template: str, plain: str | None, suffix: str) -> None:
    found = without_suffix(template)
    assert found == (template.replace("{}>", ">") if plain is None else plain, suffix)


def test_marks_end_with_the_suffix() -> None:
    entry = named(CALLS, "hy3:a1")
    assert entry is not None
    assert (entry.begin, entry.end) == (("<tool_call:a1>",), "</tool_call:a1>")
    assert entry.delimiters == ("<tool_calls:a1>", "</tool_calls:a1>")
    assert entry.argument.startswith("<arg_key:a1>$key</arg_key:a1>")
    thoughts = named(THOUGHTS, "think:a1")
    assert thoughts is not None
    assert (thoughts.begin, thoughts.end) == ("<think:a1>", "</think:a1>")


@pytest.mark.parametrize("name", CALLS)
def test_any_format_may_have_a_suffix(name: str) -> None:
    entry = named(CALLS, f"{name}:a1")
    assert entry is not None
    assert re.compile(entry.header).groupindex == re.compile(CALLS[name].header).groupindex


@pytest.mark.parametrize("name", ["", "hy5", "hy3:", "hy3:a:b", "hy3:a>", ":a", "hy3:\\g<9>"])
def test_other_names_have_no_entry(name: str) -> None:
    assert named(CALLS, name) is None
