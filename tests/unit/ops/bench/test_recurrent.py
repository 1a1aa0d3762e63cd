"""Recurrent models are timed beside transformers, both over what was meant."""

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
    found = recurrent.compare(tmp_path, 1, 0)
    assert found.keys() == {"1 users", "2 users", "prompt of 20"}
    for each in found.values():
        assert min(each.values()) > 0
        assert each["times"] == pytest.approx(each["transformers"] / each["quire"], rel=0.2)
