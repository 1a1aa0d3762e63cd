"""Memory of objects that stay is moved to huge pages, and memory that is hardly used is not.

Each in a process of its own: in one that ran other tests there is room for the objects in memory that they
left, which may be in huge pages already.
"""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ops.runtime import huge_pages

MEASURED = """
    import json, mmap, re
    from pathlib import Path

    from ops.runtime import huge_pages

    def kibibytes():
        text = Path("/proc/self/smaps_rollup").read_text()
        return [int(re.search(rf"{name}: +(\\d+) kB", text)[1]) for name in ("AnonHugePages", "Rss")]
"""
OBJECTS = """
    objects = [{number: number} for number in range(1_000_000)]  # some 230 MiB
    before = kibibytes()
    pages = huge_pages.use()
    after = kibibytes()
    same = [each[number] for number, each in enumerate(objects)] == list(range(1_000_000))
    print(json.dumps([pages, after[0] - before[0], after[1] - before[1], same]))
"""
HARDLY_USED = """
    with mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area[:: 1 << 20] = b"x" * 64
        before = kibibytes()
        huge_pages.use()
        sparse = kibibytes()
        area[:: 1 << 12] = b"x" * (1 << 14)
        huge_pages.use()
        print(json.dumps([sparse[1] - before[1], kibibytes()[0] - sparse[0]]))
"""


def measured(what: str) -> list[int]:
    """What a process of its own prints, where the system can move memory and does not do so by itself."""
    if not huge_pages.use():
        pytest.skip("this system has no call for that")
    if "[always]" in huge_pages._CHOICE.read_text():
        pytest.skip("on this system they are in huge pages at once")
    command = [sys.executable, "-c", textwrap.dedent(MEASURED) + textwrap.dedent(what)]
    process = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60)
    found: list[int] = json.loads(process.stdout)
    return found


def test_objects_are_moved() -> None:
    pages, huge, held, same = measured(OBJECTS)
    assert pages > 40
    assert huge > 80 * 1024
    assert held < 4 * 1024
    assert same


def test_what_is_hardly_used_stays_small() -> None:
    held, huge_once_filled = measured(HARDLY_USED)
    assert held < 16 * 1024
    assert huge_once_filled > 48 * 1024


def test_an_operator_may_want_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = tmp_path / "enabled"
    choice.write_text("always madvise [never]\n")
    for path in (choice, tmp_path / "another system"):
        monkeypatch.setattr(huge_pages, "_CHOICE", path)
        assert huge_pages.use() == 0
