import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ops.runtime import identity
from ops.runtime.identity import Identity


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import signal\nwhile True: signal.pause()"])


def test_a_process_is_alive_until_it_ends() -> None:
    with sleeper() as process:
        identity = Identity.of(process.pid)
        assert identity.alive()
        assert identity.end(signal.SIGKILL, 10)
        assert not identity.alive(), "also while nobody has waited for it"
    assert identity.end(signal.SIGKILL, 0)


def test_another_process_with_the_number_is_left_alone() -> None:
    with sleeper() as process:
        other = replace(Identity.of(process.pid), started="1")
        assert not other.alive()
        assert other.end(signal.SIGKILL, 10)
        assert process.poll() is None
        process.kill()


def test_where_ps_tells_the_start_everybody_is_told_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS: in the language and time zone of whoever asks, if nothing is said."""
    program = tmp_path / "ps"
    program.write_text('#!/bin/sh\necho "$4 $LC_ALL $TZ"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(identity.Path, "exists", lambda _: False)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    here = Identity.of(7)
    assert here.started == "7 C UTC"
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert here.alive()


def test_patience_has_an_end() -> None:
    with sleeper() as process:
        process.send_signal(signal.SIGSTOP)
        assert not Identity.of(process.pid).end(signal.SIGCONT, 0.05)
        process.kill()
