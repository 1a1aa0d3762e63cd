"""What long contexts cost is measured over what was meant."""

import pytest

from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from ops.bench import long_contexts
from ops.model_directory.settings import SHIPPED_MODEL
from tests.support.asking import attempts


def test_answers_beside_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_contexts, "PROMPT", 900)
    monkeypatch.setattr(long_contexts, "BEFORE", 20)
    for attempt in attempts():  # the machine may be busy with other things in one of the two parts
        with long_contexts.stretched(2100) as model:
            runner = load(WorkerSettings(model=model, max_slots=9, threads=1, kv_memory=64 << 20))
            assert runner.limits.max_model_len == 2100
            found = long_contexts.beside_a_long_prompt(runner, 108, 1)
        # Each answer gains a token in each of the prompt's steps, of which there are nine at least: a hundred
        # tokens fit into one, and fewer where steps take long. The answers outlast the prompt.
        assert found["tokens beside it"] % 8 == 0
        assert found["tokens beside it"] >= 8 * 8
        assert found["alone p50 ms"] > 0
        assert found["beside p50 ms"] <= found["longest ms"]
        assert found["longest ms"] / 1000 < found["prompt computed in s"]
        attempt.hit = found["alone p50 ms"] < found["beside p50 ms"]


def test_a_text_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_contexts, "ROLLS", 2)
    settings = WorkerSettings(
        model=SHIPPED_MODEL, max_slots=1, threads=1, max_model_len=128, kv_memory=16 << 20
    )
    for attempt in attempts():
        found = long_contexts.without_end(load(settings), 1)
        assert found["tokens"] == 128 + 2 * 64 - 16
        assert 0 < found["share of the time"] < 1
        attempt.hit = found["pause of a roll ms"] > found["usual ms"]
