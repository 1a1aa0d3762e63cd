"""What a body consists of is counted before anything is made of it."""

import json

import pytest

from gateway.errors import BadRequest
from gateway.http.counts import MAX_CONTAINERS, MAX_ITEMS, MAX_MEMBERS, MAX_STRINGS, check_counts

EMPTY_MESSAGES = b'{"model":"m","messages":[' + b'{"role":"u","content":""},' * 161_312 + b"]}"


def test_a_body_of_empty_messages():
    assert len(EMPTY_MESSAGES) <= 4 * 2**20 + 100
    with pytest.raises(BadRequest, match="objects and lists"):
        check_counts(EMPTY_MESSAGES)


@pytest.mark.parametrize(
    ("raw", "parts"),
    [
        (b"[" * (MAX_CONTAINERS + 1), "objects and lists"),
        (b"[" + b"{}," * MAX_CONTAINERS + b"{}]", "objects and lists"),
        (b'{"a":' + b"{" * MAX_CONTAINERS, "objects and lists"),
        (b'{"a":1,' * (MAX_CONTAINERS + 1), "objects and lists"),
        (b"{" + b'"a":1,' * MAX_MEMBERS + b'"a":1}', "members"),
        (b"[" + b'"",' * MAX_STRINGS + b'""]', "strings"),
        (b'{"prompt":[' + b"1," * MAX_ITEMS + b"1,1]}", "items"),
        (b"," * (MAX_ITEMS + 1), "items"),
    ],
)
def test_too_many(raw, parts):
    with pytest.raises(BadRequest, match=f"more than .* {parts}"):
        check_counts(raw)


@pytest.mark.parametrize(
    "sign", ["{", "[", ":", ",", '\\"', "\\\\", '{"a": [1, 2]}\n', '\\\\\\"{', "\\u007b"]
)
def test_what_is_within_a_string_does_not_count(sign):
    text = sign * (4 * 2**20 // len(sign.encode()))
    body = json.dumps({"model": "m", "prompt": text}).encode()
    check_counts(body)
    with pytest.raises(BadRequest, match="objects and lists"):
        check_counts(body + b"[" * MAX_CONTAINERS)
    check_counts(f'{{"prompt": "{sign.replace(chr(10), "")}"}}'.encode() if '"a"' not in sign else b"{}")


def test_as_many_as_may_be():
    check_counts(b"[" + b"[]," * (MAX_CONTAINERS - 2) + b"[]]")
    check_counts(b"{" + b'"":1,' * (MAX_MEMBERS - 1) + b'"":1}')
    check_counts(b"[" + b"1," * MAX_ITEMS + b"1]")


@pytest.mark.parametrize(
    "raw", [b'"' + b'\\"' * 2**21, b'"' + b"\\" * 2**22, b'"' * (MAX_STRINGS + 1), b'"' + b"a" * 2**22]
)
def test_a_string_without_an_end_is_read_once(raw):
    """It would take hours to begin again at each quote."""
    check_counts(raw + b"," * (MAX_ITEMS + 1) if raw[-1:] == b"a" else raw)
