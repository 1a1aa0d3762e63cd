"""What a model's generation_config.json says of requests that leave something out."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support import oracle
from tests.support.deployment import SHIPPED_MODEL, Deployment

PROMPT = "Once upon a time, in a forest,"


def ask(deployment: Deployment, prompt: str = PROMPT, **fields: Any) -> dict[str, Any]:
    body = {"model": deployment.model_name, "prompt": prompt, "return_token_ids": True, **fields}
    answer = httpx.post(f"{deployment.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def test_the_shipped_model_draws_as_it_says(deployment: Deployment) -> None:
    said = json.loads((SHIPPED_MODEL / "generation_config.json").read_text())
    stated = {"temperature": said["temperature"], "top_p": said["top_p"]}
    question = {"seed": 3, "max_tokens": 60, "ignore_eos": True}
    tokens = ask(deployment, **question)["token_ids"]
    assert tokens == ask(deployment, **question, **stated)["token_ids"]
    assert tokens != ask(deployment, **question, **{**stated, "temperature": 1.5, "top_p": 1})["token_ids"]
    (model,) = httpx.get(f"{deployment.url}/v1/models", timeout=60).json()["data"]
    assert model["defaults"] == stated


def test_beams_and_the_best_of_some_go_with_them(deployment: Deployment) -> None:
    beams = {"use_beam_search": True, "beam_width": 2, "max_tokens": 8}
    assert ask(deployment, **beams)["text"] == ask(deployment, **beams, temperature=0)["text"]
    best = {"best_of": 3, "seed": 5, "max_tokens": 8}
    assert ask(deployment, **best)["text"] == ask(deployment, **best, temperature=0.7, top_p=0.95)["text"]


@pytest.fixture(scope="module")
def terse(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The shipped model, greedy, against repetition, at most 24 tokens, and ending at a full stop, too."""
    model = tmp_path_factory.mktemp("models") / "terse"
    shutil.copytree(SHIPPED_MODEL, model)
    stop = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]["."]
    config = {"do_sample": False, "repetition_penalty": 1.3, "max_new_tokens": 24, "eos_token_id": [4, stop]}
    (model / "generation_config.json").write_text(json.dumps(config))
    deployment = Deployment(redis_server, tmp_path_factory.mktemp("terse"), model)
    try:
        yield deployment.start()
        deployment.assert_clean()
    finally:
        deployment.stop()


@pytest.mark.parametrize(
    "prompt", [PROMPT, "The owl said", "One two three four five six seven", "- apples\n-"]
)
def test_an_answer_is_what_transformers_makes_of_it(terse: Deployment, prompt: str) -> None:
    directory = Path(terse.environment["QUIRE_MODEL"])
    _, tokenizer = oracle.load(directory)
    expected = oracle.by_its_own_defaults(directory, tokenizer(prompt).input_ids)
    choice = ask(terse, prompt)
    assert choice["token_ids"] == expected
    assert choice["finish_reason"] == ("length" if len(expected) == 24 else "stop")


def test_what_a_request_states_counts(terse: Deployment) -> None:
    assert len(ask(terse, max_tokens=30, ignore_eos=True)["token_ids"]) == 30
    answers = {ask(terse, temperature=1.2, ignore_eos=True, seed=seed)["text"] for seed in range(3)}
    assert len(answers) > 1, "drawn, although the model itself is greedy"


def test_neither_a_default_nor_max_tokens_refuses(terse: Deployment) -> None:
    """The model's context is 2048: of 24 tokens, as many are made as there is room for."""
    tokens = [7] * 2040
    body = {"model": terse.model_name, "prompt": tokens, "ignore_eos": True}
    answer = httpx.post(f"{terse.url}/v1/completions", json=body, timeout=60).json()
    assert answer["usage"]["completion_tokens"] == 8
    cut = httpx.post(f"{terse.url}/v1/completions", json={**body, "max_tokens": 24}, timeout=60).json()
    assert cut["usage"]["completion_tokens"] == 8
    assert cut["choices"][0]["finish_reason"] == "length"
