"""What images cost, with a model that is smaller."""

from pathlib import Path
from typing import Any

import pytest

from gpu_worker.step.runner import Runner
from ops.bench import images

TEXT: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 64, "head_dim": 32}
TEXT |= {"num_attention_heads": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
TEXT |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
TEXT |= {"rope_parameters": ROPE | {"mrope_section": [2, 1, 1]}}
TOWER = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 64}


def test_images_are_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "SIDES", (2, 3))
    monkeypatch.setattr(images, "USERS", (2,))
    monkeypatch.setattr(images, "STEPS", 2)
    monkeypatch.setattr(Runner, "enter", lambda _: None)  # it would keep the tests to one core
    images.make(tmp_path, 0, TEXT, TOWER)
    runners = {name: images.load_runner(tmp_path, most) for name, most in (("with", 64), ("without", 0))}
    found = images.first_tokens(tmp_path, runners["with"], 1, 0)
    assert list(found) == ["4 tokens", "9 tokens"]
    times = images.steps(runners, 1, 0)["2 users"]
    assert list(times) == ["text, without the tower", "text", "behind images"]
    assert all(time > 0 for time in times.values())
