"""The installed command, with and without what it needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from ops.cli.entry import main


def test_it_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["quire", "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "quire up" in capsys.readouterr().out


def test_ctrl_c_takes_no_traceback_while_modules_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("ops.cli.main.main", interrupted)
    assert main() == 130


def run_without(name: str, *command: str) -> subprocess.CompletedProcess[str]:
    """`quire`, with `--version` or another command, where a module cannot be imported."""
    code = f"import sys; sys.modules[{name!r}] = None; from ops.cli.entry import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *(command or ("--version",))], capture_output=True, text=True
    )


def test_a_missing_package_takes_one_line() -> None:
    ended = run_without("httpx")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("quire: not installed: httpx; pip install 'quire[all]'")


def test_so_does_a_package_that_only_one_command_needs() -> None:
    ended = run_without("psutil", "bench", "step")
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("quire: not installed: psutil;")
    assert "'quire[bench]'" in line


@pytest.mark.parametrize("name", ["proto.py", "gateway.py"])
def test_another_package_of_the_same_name_takes_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; from ops.cli.entry import main; sys.exit(main())"
    ended = subprocess.run([sys.executable, "-c", code, "status"], capture_output=True, text=True)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"quire: {tmp_path / name} has the name of a package of Quire's")


def test_a_module_of_quire_that_is_missing_is_a_fault() -> None:
    ended = run_without("ops.cli.up")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
