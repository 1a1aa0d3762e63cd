"""Traces are read as they are written, and a bad one says where."""

import pytest

from ops.simulate.trace import Arrival, TraceError, read

JSON = """\
{"at": 0, "prompt_tokens": 5, "output_tokens": 3}
{"at": 1.5, "prompt_tokens": 20, "output_tokens": 1, "prefix": "a", "shared_tokens": 16, "tenant": "t"}
"""
CSV = """\
at,prompt_tokens,output_tokens,prefix,shared_tokens,tenant
0,5,3,,,
1.5,20,1,a,16,t
"""


@pytest.fixture
def written(tmp_path):
    def write(text: str, name: str = "trace.jsonl"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(("text", "name"), [(JSON, "trace.jsonl"), (CSV, "trace.csv")])
def test_both_kinds_say_the_same(written, text, name) -> None:
    assert list(read(written(text, name))) == [
        Arrival(0.0, 5, 3),
        Arrival(1.5, 20, 1, "a", 16, "t"),
    ]


def test_what_the_policies_want_to_know(written) -> None:
    line = '{"at": 2, "prompt_tokens": 3, "output_tokens": 1, "priority": -1, "timeout": 2.5}\n'
    assert list(read(written(line))) == [Arrival(2.0, 3, 1, priority=-1, timeout=2.5)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting"),
        ("[]", "must be an object"),
        ('{"at": 2, "prompt_tokens": 5}', "'output_tokens' is missing"),
        ('{"at": 2, "prompt_tokens": 5, "output_tokens": 0}', "at least 1"),
        ('{"at": 2, "prompt_tokens": 5.5, "output_tokens": 1}', "not a whole number"),
        ('{"at": 2, "prompt_tokens": "x", "output_tokens": 1}', "invalid literal"),
        ('{"at": 1, "prompt_tokens": 5, "output_tokens": 1}', "at=1.0 comes after 1.5"),
        ('{"at": NaN, "prompt_tokens": 5, "output_tokens": 1}', "at=nan"),
        ('{"at": 2, "prompt_tokens": 5, "output_tokens": 1, "shared_tokens": 6}', "shared_tokens=6"),
        ('{"at": 2, "prompt_tokens": 5, "output_tokens": 1, "shared_tokens": 5}', "without a prefix"),
        ('{"at": 2, "prompt_tokens": 5, "output_tokens": 1, "user": "x"}', "no such field: user"),
        ('{"at": 2, "prompt_tokens": 5, "output_tokens": 1, "timeout": 0}', "timeout=0"),
    ],
)
def test_a_bad_line_is_named(written, line, reason) -> None:
    with pytest.raises(TraceError, match=rf"trace\.jsonl:3: .*{reason}"):
        list(read(written(JSON + line + "\n")))


@pytest.mark.parametrize("line", ["2,5", "2,5,1,a,1,t,more", "2,five,1,,,"])
def test_a_bad_line_of_a_table_is_named(written, line) -> None:
    with pytest.raises(TraceError, match=r"trace\.csv:4: "):
        list(read(written(CSV + line + "\n", "trace.csv")))


def test_other_files_are_refused(written) -> None:
    with pytest.raises(TraceError, match=r"must end in \.jsonl or \.csv"):
        list(read(written(JSON, "trace.txt")))
