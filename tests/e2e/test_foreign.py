"""A model that transformers runs, served end to end: its answers are transformers' own."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support import oracle
from tests.support.deployment import SHIPPED_MODEL, Deployment
from tests.unit.gpu_worker.behaviour.test_families import random_model

PROMPTS = [[5, 17, 300, 88, 41], [9, 60, 2000, 73]]


@pytest.fixture(scope="module")
def foreign(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A random StableLM with norms of its heads, which no entry of the table of families has."""
    model = tmp_path_factory.mktemp("models") / "foreign"
    changes = {"hidden_size": 64, "vocab_size": 4096, "qk_layernorm": True, "eos_token_id": 4}
    random_model("StableLmForCausalLM", changes).save_pretrained(model)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHIPPED_MODEL / name, model)
    deployment = Deployment(redis_server, tmp_path_factory.mktemp("foreign"), model)
    try:
        yield deployment.start()
        deployment.assert_clean()
    finally:
        deployment.stop()


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_answers_are_those_of_transformers(foreign: Deployment, prompt: list[int]) -> None:
    expected = oracle.greedy(Path(foreign.environment["QUIRE_MODEL"]), prompt, 20, end=False)
    assert len(set(expected)) > 4, "a model that repeats itself shows little"
    body = {
        "model": foreign.model_name,
        "prompt": prompt,
        "temperature": 0,
        "max_tokens": 20,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    answer = httpx.post(f"{foreign.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["token_ids"] == expected
