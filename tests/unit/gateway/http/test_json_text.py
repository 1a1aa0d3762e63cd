"""JSON with halves of characters, as JavaScript spells a text that was cut between two."""

import contextlib
import json
import time

import pytest

from gateway.http import json_text
from gateway.http.json_text import text_of, value_of, whole


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (r'"a\ud83d b"', "a\ufffd b"),
        (r'"\uDE00\ude00"', "\ufffd\ufffd"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd😀"),
        (r'"\ud83d\ude00"', "😀"),
        (r'"\\ud83d"', r"\ud83d"),
        (r'"\\\ud83dé"', "\\\ufffdé"),
        (r'"\\\\ud83d\ud83d\uDE00\n\udc00\\"', "\\\\ud83d😀\n\ufffd\\"),
        (r'"\\ud83d\ude00"', "\\ud83d\ufffd"),
        (r'{"\ud83d": [0.1, 123456789012345678901234567890, true, null]}', None),
    ],
)
def test_a_character_stands_for_each_half(raw, value):
    found = value_of(raw.encode())
    assert found == (json.loads(raw.replace(r"\ud83d", r"\ufffd")) if value is None else value)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b'"\\ud83d',
        b'["\\ud83d", NaN]',
        b'["\\ud83d", "\xff"]',
        b'"\xed\xa0\xbd"',
        '"a"'.encode("utf-16"),
        b'["\\ud83d", ' + b"[" * 10_000 + b"]" * 10_001,
    ],
)
def test_what_else_is_no_json_is_refused(raw):
    with pytest.raises(ValueError, match="at line 1"):
        value_of(raw)


def test_a_mark_of_the_byte_order_is_no_part_of_the_text():
    """Notepad and PowerShell begin a text with it."""
    for text in ('["a"]', r'["\ufeff\ud83d"]'):
        assert value_of(text.encode("utf-8-sig")) == value_of(text.encode())
    with pytest.raises(ValueError, match="at line 1"):
        value_of("\ufeff\ufeff1".encode())


def test_a_long_hostile_text_takes_no_time():
    for raw in (b"\\\\" * 10**6, b"\\ud83d\\ude00" * 10**5, b"\\" * (10**6 + 1)):
        begun = time.perf_counter()
        with contextlib.suppress(ValueError):
            value_of(b'"' + raw + b'\\ud83d"')
        assert time.perf_counter() - begun < 5


def test_a_value_is_written_as_it_was():
    value = {"a": [1, 123456789012345678901234567890, 0.1, "😀\u2028\0", None, True]}
    assert value_of(text_of(value)) == value
    with pytest.raises(ValueError, match="at line 1"):
        value_of(text_of(value_of(b"[1e999]")))


def test_a_text_that_is_no_json_is_refused_at_once():
    """Nothing else in the process goes on while an expression is searched for. The quickest of some times is
    that of the search, whatever else the machine does."""
    for raw in (b"9" * 10**7, b"[" * 10**7, b'"' + b"\\n" * 5 * 10**6):
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            with pytest.raises(ValueError, match="at line 1"):
                value_of(raw)
            times.append(time.perf_counter() - begun)
        assert min(times) < 0.5


def test_no_more_halves_are_mended_than_a_prompt_has(monkeypatch):
    monkeypatch.setattr(json_text, "MAX_HALVES", 2)
    assert value_of(rb'"\ud83d\ude00\ud83d"') == "😀\ufffd"
    with pytest.raises(ValueError, match="at line 1"):
        value_of(rb'"\ud83d\ude00\ud83d\ud83d"')


def test_whole_texts_stay_as_they_are():
    assert whole("\ufeffé😀\0") == "\ufeffé😀\0"
    assert whole("\ude00\ud83d") == "\ufffd\ufffd"
