"""Files of requests and results: what is wrong is named, and what is there is not asked again."""

import json
from math import nan
from pathlib import Path
from typing import Any

import pytest

from ops.cli.batch.lines import Line, Results, lines_of
from ops.runtime.errors import UsageError

GOOD: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "A"}}


def result(name: str, status: int | None = 200) -> dict[str, Any]:
    response = None if status is None else {"status_code": status, "body": {}}
    return {"id": "x", "custom_id": name, "response": response, "error": None}


def test_requests_are_read_and_empty_lines_are_not(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(GOOD | {'custom_id': 'b'})}")
    first, second = lines_of(path)
    assert first == Line("a", "/v1/completions", {"prompt": "A"})
    assert second.custom_id == "b"


def test_a_file_as_windows_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\r\n")
    assert [line.custom_id for line in lines_of(path)] == ["a"]


def test_a_disk_without_room_is_one_line(tmp_path: Path) -> None:
    with Results(tmp_path / "out") as results:
        results._file.close()
        results._file = open("/dev/full", "w+b")  # noqa: SIM115
        with pytest.raises(UsageError, match="out cannot be written: No space left"):
            results.add(result("a"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        (json.dumps(GOOD | {"body": {"temperature": nan}}), "not JSON"),
        ('{"body": ' + "[" * 10**5, "not JSON"),
        ("[]", "not a request"),
        (json.dumps(GOOD | {"method": "GET"}), "not a request"),
        (json.dumps(GOOD | {"body": 7}), "not a request"),
        (json.dumps(GOOD | {"url": "http://elsewhere"}), "endpoint"),
        (json.dumps(GOOD | {"body": {"stream": True}}), "stream"),
        (json.dumps(GOOD), "earlier line"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{text}\n")
    with pytest.raises(UsageError, match=f"line 2: .*{message}"):
        list(lines_of(path))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        list(lines_of(tmp_path / "none"))
    with pytest.raises(UsageError, match="cannot be written"), Results(tmp_path / "none" / "out"):
        pass


def test_results_go_on_after_a_line_that_was_broken_off(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with Results(path) as results:
        results.add(result("a"))
        results.add(result("b", 400))
        results.add(result("c", None))
    path.write_bytes(path.read_bytes() + b'{"custom_id": "d", "resp')
    with Results(path) as results:
        assert (results.known, results.failed) == ({"a", "b", "c"}, 2)
        results.add(result("d"))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == ["a", "b", "c", "d"]


def test_another_file_is_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("my notes\n")
    with pytest.raises(UsageError, match="other lines"), Results(path):
        pass
    assert path.read_text() == "my notes\n"
