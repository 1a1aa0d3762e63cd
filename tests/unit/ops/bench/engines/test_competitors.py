"""Other engines have the machine as if they were alone."""

import pytest

from ops.bench.engines.competitors import peer_environment


def test_threads_of_other_engines_need_not_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quire's worker asks that of its own, in the environment of the process that imports it."""
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    monkeypatch.setenv("THEIR_SETTING", "1")
    found = peer_environment(3)
    assert "OMP_WAIT_POLICY" not in found
    assert (found["OMP_NUM_THREADS"], found["THEIR_SETTING"]) == ("3", "1")
