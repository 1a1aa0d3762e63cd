"""A command whose reader goes away ends as if it had been read."""

import os
import subprocess
import sys


def test_a_reader_may_leave_before_a_command_has_printed() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "ops.cli.main", "status"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert "BrokenPipe" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_deployment_goes_on_when_nobody_reads_its_output() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    script = "from ops.cli.up import _say; _say('ready'); _say('stopped'); import os; os._exit(7)"
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (7, "")
