"""Settings of a scheduler process."""

import pytest

from scheduler_svc.settings import SchedulerSettings


def test_defaults_serve_the_shipped_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_MODEL_NAME", raising=False)
    settings = SchedulerSettings()
    assert (settings.plan_depth, settings.step_tokens, settings.max_requests) == (None, None, 1024)
    assert SchedulerSettings(model="/models/fox-1").served_name == "fox-1"  # type: ignore[arg-type]


def test_values_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_MODEL_NAME", "quire-tiny")
    monkeypatch.setenv("QUIRE_PLAN_DEPTH", "1")
    settings = SchedulerSettings.from_environment()
    assert (settings.served_name, settings.plan_depth) == ("quire-tiny", 1)


def test_a_policy_that_there_is_not_stops_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIRE_POLICY", "round-robin")
    assert SchedulerSettings.from_environment().policy == "round-robin"
    monkeypatch.setenv("QUIRE_POLICY", "lottery")
    with pytest.raises(SystemExit):
        SchedulerSettings.from_environment()
    assert "QUIRE_POLICY=lottery" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["PLAN_DEPTH", "STEP_TOKENS", "MAX_REQUESTS"])
def test_a_bad_value_stops_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setenv(f"QUIRE_{name}", "0")
    with pytest.raises(SystemExit):
        SchedulerSettings.from_environment()
    assert f"QUIRE_{name}=0" in capsys.readouterr().err
