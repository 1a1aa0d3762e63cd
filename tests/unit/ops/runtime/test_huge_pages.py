"""Memory of objects that stay is moved to huge pages, and memory that is hardly used is not."""

import mmap
import re
from pathlib import Path

import pytest

from ops.runtime import huge_pages

MIB = 1 << 20


def kibibytes(name: str) -> int:
    """A sum of this process's memory."""
    found = re.search(rf"^{name}: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])


@pytest.fixture
def objects() -> list[dict[int, int]]:
    """Some 50 MiB of them."""
    if not huge_pages.use():
        pytest.skip("this system has no call for that")
    if "[always]" in huge_pages._CHOICE.read_text():
        pytest.skip("on this system they are in huge pages at once")
    return [{number: number} for number in range(200_000)]


def test_objects_are_moved(objects: list[dict[int, int]]) -> None:
    before, held = kibibytes("AnonHugePages"), kibibytes("Rss")
    assert huge_pages.use() > 10
    assert kibibytes("AnonHugePages") - before > 20 * 1024
    assert kibibytes("Rss") - held < 4 * 1024
    assert [each[number] for number, each in enumerate(objects)] == list(range(200_000))


def test_what_is_hardly_used_stays_small(objects: list[dict[int, int]]) -> None:
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        area[::MIB] = b"x" * 64
        held = kibibytes("Rss")
        huge_pages.use()
        assert kibibytes("Rss") - held < 16 * 1024


def test_an_operator_may_want_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = tmp_path / "enabled"
    choice.write_text("always madvise [never]\n")
    for path in (choice, tmp_path / "another system"):
        monkeypatch.setattr(huge_pages, "_CHOICE", path)
        assert huge_pages.use() == 0
