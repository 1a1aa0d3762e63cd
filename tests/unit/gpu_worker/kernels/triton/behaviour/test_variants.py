"""A worker that has started has every kernel that a step may need: no request waits for a compiler."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.variants import MODELS


@pytest.mark.timeout(600)
def test_no_step_needs_a_kernel_that_was_not_rehearsed() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "tests.support.variants"],
        env=os.environ | {"TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert answer.returncode == 0, answer.stderr
    rehearsed = dict(re.findall(r"^(.*): (\d+) rehearsed$", answer.stdout, re.MULTILINE))
    assert list(rehearsed) == list(MODELS)
    assert int(rehearsed["Llama"]) > 10
    assert len(answer.stdout.splitlines()) == len(MODELS), answer.stdout
