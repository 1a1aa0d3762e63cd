"""The bounds of a process that does a tokenizer's work."""

import subprocess
import sys

import pytest

MEBIBYTE = 2**20


@pytest.mark.parametrize(("owner", "memory"), [("-1", 1024), (f"{512 * MEBIBYTE}", 512)], ids=["any", "less"])
def test_it_has_no_more_memory_than_its_owner(owner: str, memory: int) -> None:
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, ({owner}, {owner}))
from tokenizer_svc.bounded import set_bounds
set_bounds({1024 * MEBIBYTE})
print(*resource.getrlimit(resource.RLIMIT_AS))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == [str(memory * MEBIBYTE)] * 2, done.stderr
