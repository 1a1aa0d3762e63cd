"""A SIGKILL by the kernel is told from one by an operator."""

import signal
from pathlib import Path

import pytest

from ops.launcher.launch import Launcher
from ops.launcher.out_of_memory import OutOfMemory
from ops.launcher.specs import Options


def test_an_end_for_want_of_memory_is_seen_once(tmp_path: Path) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("nr_free_pages 7\noom_kill 3\npgfault 1\n")
    memory = OutOfMemory(counters)
    assert not memory.ran_out()
    counters.write_text("nr_free_pages 7\noom_kill 4\npgfault 1\n")
    assert memory.ran_out()
    assert not memory.ran_out()


def test_without_the_counter_it_is_not_known(tmp_path: Path) -> None:
    assert OutOfMemory(tmp_path / "none").ran_out() is None
    (tmp_path / "vmstat").write_text("nr_free_pages 7\n")
    assert OutOfMemory(tmp_path / "vmstat").ran_out() is None


@pytest.mark.parametrize(("count", "told"), [(4, True), (3, False)], ids=["memory", "operator"])
async def test_a_person_is_told_that_there_was_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, told: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("QUIRE_REDIS_URL", raising=False)
    (tmp_path / "redis").mkdir()
    counters, said = tmp_path / "vmstat", list[str]()
    counters.write_text("oom_kill 3\n")
    launcher = Launcher(Options(), tmp_path, said.append)
    launcher._memory = OutOfMemory(counters)
    counters.write_text(f"oom_kill {count}\n")
    await launcher._bury(launcher.supervisor.children[-1], -signal.SIGKILL)
    await launcher.close()
    assert bool(said) is told
