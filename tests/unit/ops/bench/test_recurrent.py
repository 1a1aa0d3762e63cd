"""Recurrent models are timed beside transformers, both over what was meant."""

from itertools import pairwise
from pathlib import Path

import pytest

from gpu_worker.models.config import read_config
from ops.bench import recurrent


@pytest.mark.parametrize("name", recurrent.SIZES)
def test_both_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(recurrent, "USERS", (1, 2))
    monkeypatch.setattr(recurrent, "PROMPT", 9)
    monkeypatch.setattr(recurrent, "LONG", 20)
    monkeypatch.setattr(recurrent, "ANSWER", 8)
    monkeypatch.setattr(recurrent, "STEPS", 4)
    smaller = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 64, "full_attn_idxs": [2]}
    recurrent.make(name, tmp_path, 0, **smaller)
    assert read_config(tmp_path).recurrent
    runner = recurrent.load_runner(tmp_path)
    found = recurrent.compare(runner, tmp_path, 1, 0)
    assert found.keys() == {"1 users", "2 users", "prompt of 20"}
    for each in found.values():
        assert min(each.values()) > 0
        assert each["times"] == pytest.approx(each["transformers"] / each["quire"], rel=0.2)


def test_a_chat_is_asked_again_turn_by_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn begins with the one before and its answer, which most of the time has its stop token."""
    monkeypatch.setattr(recurrent, "TURNS", 4)
    monkeypatch.setattr(recurrent, "SYSTEM", 50)
    recurrent.make("Qwen 3.5", tmp_path, 0, hidden_size=64, num_hidden_layers=4, intermediate_size=64)
    runner = recurrent.load_runner(tmp_path)
    questions = recurrent.chat(runner, 1)
    assert len(questions) == 4
    for before, after in pairwise(questions):
        assert after.prompt[: len(before.prompt)] == before.prompt
        answer = after.prompt[len(before.prompt) :][: before.max_tokens]
        assert len(answer) == recurrent.TURN or answer[-1] in recurrent.STOPS
        assert not recurrent.STOPS.intersection(answer[:-1])
    assert len(recurrent.turn_by_turn(runner, questions, recurrent.STOPS)) == 3
    found = recurrent.compare_blocks(runner, 1, 0, recurrent.chat, recurrent.turn_by_turn)
    assert found.keys() == {"full blocks", "partial blocks", "times"}


def test_some_begin_at_once(tmp_path: Path) -> None:
    recurrent.make(
        "LFM2", tmp_path, 0, hidden_size=64, num_hidden_layers=4, intermediate_size=64, full_attn_idxs=[2]
    )
    runner = recurrent.load_runner(tmp_path)
    questions = recurrent.beginnings(runner, 1)
    assert len({tuple(each.prompt[: recurrent.SYSTEM + 1]) for each in questions}) == 1
    assert len({tuple(each.prompt) for each in questions}) == recurrent.AT_ONCE
    assert len(recurrent.at_once(runner, questions, recurrent.STOPS)) == recurrent.AT_ONCE
