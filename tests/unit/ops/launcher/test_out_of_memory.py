"""A SIGKILL by the kernel is told from one by an operator."""

from pathlib import Path

from ops.launcher.out_of_memory import OutOfMemory


def test_an_end_for_want_of_memory_is_seen_once(tmp_path: Path) -> None:
    counters = tmp_path / "vmstat"
    counters.write_text("nr_free_pages 7\noom_kill 3\npgfault 1\n")
    memory = OutOfMemory(counters)
    assert not memory.ran_out()
    counters.write_text("nr_free_pages 7\noom_kill 4\npgfault 1\n")
    assert memory.ran_out()
    assert not memory.ran_out()


def test_without_the_counter_it_is_not_known(tmp_path: Path) -> None:
    assert OutOfMemory(tmp_path / "none").ran_out()
    (tmp_path / "vmstat").write_text("nr_free_pages 7\n")
    assert OutOfMemory(tmp_path / "vmstat").ran_out()
