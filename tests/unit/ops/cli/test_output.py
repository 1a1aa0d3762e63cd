"""A command whose output nobody can read, or not any more, ends as if it had been read."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from ops.launcher.deployments import Deployment
from ops.runtime.identity import Identity

FULL = Path("/dev/full")
"""Linux has it: a file on a disk that is full."""


def test_a_reader_may_leave_before_a_command_has_printed() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ops.cli.main", "status"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert "BrokenPipe" not in done.stderr
    assert "Traceback" not in done.stderr


def test_its_streams_may_be_closed() -> None:
    command = [
        "sh",
        "-c",
        'exec "$@" <&- >&-',
        "sh",
        sys.executable,
        "-m",
        "ops.cli.main",
        "status",
        "--json",
    ]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", b"gr\\xf6\\xdfer"), ("utf-8", "größer".encode())])
def test_characters_that_the_terminal_lacks_are_escaped(encoding: str, shown: bytes, tmp_path: Path) -> None:
    ended = Identity(1, "")
    record = Deployment("http://größer", 1, "m", "redis://x", "quire:", launcher=ended, processes={})
    directory = tmp_path / "quire" / "1"
    directory.mkdir(parents=True)
    (directory / "deployment.json").write_text(json.dumps(asdict(record)))
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "ops.cli.main", "status"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.stderr == b""
    assert done.stdout.startswith(b"http://" + shown)


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_deployment_goes_on_when_the_disk_with_its_output_is_full() -> None:
    with FULL.open("w") as full:
        assert _says_and_goes_on(full.fileno()) == (7, "")


def test_a_deployment_goes_on_when_nobody_reads_its_output() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert _says_and_goes_on(writing) == (7, "")
    os.close(writing)


def _says_and_goes_on(output: int) -> tuple[int, str]:
    """Status and errors of a process that says two lines, and ends with status 7."""
    script = "from ops.cli.up import _say; _say('ready'); _say('stopped'); import os; os._exit(7)"
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=output, stderr=subprocess.PIPE, text=True, check=False
    )
    return done.returncode, done.stderr
