"""`quire top` as a user calls it."""

import pytest

from ops.cli.main import main


def test_without_a_server_it_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--url", "http://127.0.0.1:1/"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("quire: no server answers at http://127.0.0.1:1")
    assert said.err.endswith("; `quire up` starts one\n")
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:x"])
def test_what_is_no_url_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--url", url]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"quire: --url {url}: ")
    assert said.err.count("\n") == 1
