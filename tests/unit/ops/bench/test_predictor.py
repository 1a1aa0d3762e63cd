"""What drafts of a layer cost, with a model that is smaller."""

from pathlib import Path

import pytest

from gpu_worker.step.runner import Runner
from ops.bench import predictor


def test_steps_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predictor, "USERS", (1, 2))
    monkeypatch.setattr(predictor, "PROMPT", 9)
    monkeypatch.setattr(predictor, "STEPS", 3)
    monkeypatch.setattr(Runner, "enter", lambda _: None)  # it would keep the tests to one core
    predictor.make_with_layer(
        tmp_path, 0, hidden_size=64, num_hidden_layers=4, intermediate_size=64, vocab_size=300
    )
    measured = predictor.Answers.milliseconds

    def steady(answers: predictor.Answers, drafts: int) -> float:
        """What a step takes depends on what else this machine does, and from when on drafts pay with it."""
        assert measured(answers, drafts) > 0
        return 10.0 + drafts

    monkeypatch.setattr(predictor.Answers, "milliseconds", steady)
    found = predictor.measure(tmp_path, 1, 0)
    assert list(found) == ["1 users", "2 users"]
    assert all(time > 0 for time in found["2 users"].values())
    times = {"without the layer": 10.0} | {f"{drafts} drafts": 10.0 + drafts for drafts in predictor.DRAFTS}
    chances = {
        f"{drafts} drafts, pays from": predictor.pays_from(10.0, 10.0 + drafts, drafts)
        for drafts in predictor.DRAFTS[1:]
    }
    assert found["1 users"] == found["2 users"] == times | chances


def test_a_draft_pays_from_the_time_that_it_takes() -> None:
    assert predictor.pays_from(10, 15, 1) == 0.5
    assert predictor.pays_from(10, 17.5, 2) == 0.5
    assert predictor.pays_from(10, 9, 1) == 0.0
    assert predictor.pays_from(10, 25, 1) == 1.0
