"""Two models behind one gateway, each with processes of its own."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.deployment import Deployment

OWN = ("gpu_worker", "scheduler_svc", "tokenizer_svc")


@pytest.fixture(scope="module")
def deployment(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The shipped model under two names, and an alias for the second."""
    directory = tmp_path_factory.mktemp("two-models")
    deployment = Deployment(redis_server, directory, QUIRE_MODEL_ALIASES="other=second")
    try:
        deployment.start()
        deployment.environment["QUIRE_MODEL_NAME"] = "second"
        for service in OWN:
            deployment.spawn(service)
        deployment.wait_for_models({"quire-tiny", "second"})
        yield deployment
        deployment.assert_clean()
    finally:
        deployment.stop()


def ask(deployment: Deployment, model: str, **fields: Any) -> httpx.Response:
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 24, "temperature": 0, **fields}
    return httpx.post(f"{deployment.url}/v1/completions", json=body, timeout=120)


def test_each_is_asked_by_its_name_and_by_its_alias(deployment: Deployment) -> None:
    listed = httpx.get(f"{deployment.url}/v1/models").json()["data"]
    assert {(one["id"], one["root"]) for one in listed} == {
        ("quire-tiny", "quire-tiny"),
        ("second", "second"),
        ("other", "second"),
    }
    answers = [ask(deployment, model).json() for model in ("quire-tiny", "second", "other")]
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    assert [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers] == [0] * 3
    long = "The fox and the owl went for a walk in the snow. " * 8
    cached = [
        ask(deployment, model, prompt=long).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        for model in ("quire-tiny", "quire-tiny", "second", "other")
    ]
    assert cached == [False, True, False, True], "each has a cache of its own, whatever it is called"
    unknown = ask(deployment, "third")
    assert unknown.status_code == 404
    assert "'quire-tiny', 'second'" in unknown.json()["error"]["message"]


def test_while_the_worker_of_one_is_dead_the_other_answers(deployment: Deployment) -> None:
    expected = ask(deployment, "second").json()["choices"][0]["text"]
    deployment.processes["gpu_worker"][-1].kill()
    deployment.processes["gpu_worker"][-1].wait()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ask, deployment, "second")
        for _ in range(3):
            assert ask(deployment, "quire-tiny").json()["choices"][0]["text"] == expected
        assert not waiting.done(), "it waits for a worker of its own model"
        deployment.spawn("gpu_worker")
        assert waiting.result().json()["choices"][0]["text"] == expected
