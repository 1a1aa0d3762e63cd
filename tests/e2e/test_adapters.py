"""LoRA adapters over real processes: each request gets what its adapter says, whoever dies on the way."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ops.launcher.redis_server import RedisServer
from tests.support.adapters import write_adapter
from tests.support.asking import attempts
from tests.support.deployment import SHIPPED_MODEL, Deployment

PROMPT = "Once upon a time, in a forest,"
NAMES = ("quire-tiny", "sql", "poet")
LENGTH = 120
STYLES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 5, "n": 2, "logprobs": 1},
    {"temperature": 0, "use_beam_search": True, "beam_width": 2, "max_tokens": 20},
]
SERVICES = ("gpu_worker", "scheduler_svc", "tokenizer_svc")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each name computes, in transformers; and the adapters' directories."""
    directory = tmp_path_factory.mktemp("adapters")
    model = AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype="float32").eval()
    found = {"quire-tiny": model, "directory": directory}
    for seed, name in enumerate(NAMES[1:], 1):
        found[name] = write_adapter(directory / name, model, seed, rank=8, lora_alpha=5)
    return found


@pytest.fixture(scope="module")
def deployment(
    models: dict[str, Any], redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    modules = " ".join(f"{name}={models['directory'] / name}" for name in NAMES[1:])
    directory = tmp_path_factory.mktemp("deployment")
    deployment = Deployment(redis_server, directory, QUIRE_LORA_MODULES=modules)
    try:
        yield deployment.start()
        deployment.assert_clean()
    finally:
        deployment.stop()


async def ask(http: httpx.AsyncClient, model: str, **fields: Any) -> list[tuple[Any, ...]]:
    """What each choice of an answer is."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": LENGTH, "ignore_eos": True, **fields}
    response = await http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["model"] == model
    return [
        (one["text"], one["finish_reason"], one["logprobs"] and one["logprobs"]["tokens"])
        for one in answer["choices"]
    ]


def client(deployment: Deployment) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=deployment.url, timeout=120)


async def test_each_is_listed_and_says_what_transformers_says(
    deployment: Deployment, models: dict[str, Any]
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(SHIPPED_MODEL)
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    async with client(deployment) as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [(one["id"], one["parent"]) for one in listed] == [
            ("quire-tiny", None),
            ("poet", "quire-tiny"),
            ("sql", "quire-tiny"),
        ]
        texts = await asyncio.gather(*(ask(http, name, temperature=0, max_tokens=40) for name in NAMES))
    for name, ((text, *_),) in zip(NAMES, texts, strict=True):
        found = ids
        with torch.inference_mode():
            for _ in range(40):
                found = torch.cat((found, models[name](found).logits[:, -1:].argmax(-1)), dim=1)
        assert text == tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True)
    assert len({text for ((text, *_),) in texts}) == 3


async def test_together_each_gets_what_it_gets_alone(deployment: Deployment) -> None:
    asked = [(name, style) for style in STYLES for name in NAMES]
    async with client(deployment) as http:
        alone = [await ask(http, name, **style) for name, style in asked]
        together = await asyncio.gather(*(ask(http, name, **style) for name, style in asked))
        assert together == alone
        long = PROMPT * 8
        usages = []
        for name in (*NAMES, *NAMES):
            body = {"model": name, "prompt": long, "max_tokens": 1}
            usages.append((await http.post("/v1/completions", json=body)).json()["usage"])
        cached = [usage["prompt_tokens_details"]["cached_tokens"] > 0 for usage in usages]
        assert cached == [False] * 3 + [True] * 3, "prefixes are shared within an adapter"
        shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}}
        chat = {"model": "sql", "messages": [{"role": "user", "content": "x"}], "response_format": shape}
        answer = (await http.post("/v1/chat/completions", json=chat)).json()
        assert answer["choices"][0]["message"]["content"] in ("true", "false")
        vectors = [
            (await http.post("/v1/embeddings", json={"model": name, "input": "x"})).json()["data"][0][
                "embedding"
            ]
            for name in NAMES
        ]
        assert vectors[0] != vectors[1] != vectors[2]


@pytest.mark.parametrize("service", SERVICES)
async def test_an_answer_goes_on_when_a_process_is_killed(deployment: Deployment, service: str) -> None:
    async with client(deployment) as http:
        expected = {name: await ask(http, name, temperature=0.8, seed=3) for name in NAMES}
        for attempt in attempts():
            going = [asyncio.ensure_future(streamed(http, name)) for name in NAMES]
            await asyncio.sleep(0.15)
            attempt.hit = not any(one.done() for one in going)
            deployment.kill(service)
            deployment.spawn(service)
            texts = await asyncio.gather(*going)
            assert dict(zip(NAMES, texts, strict=True)) == {
                name: each[0][0] for name, each in expected.items()
            }
    deployment.wait_ready()


async def streamed(http: httpx.AsyncClient, model: str) -> str:
    """The text of a streamed answer."""
    body = {"model": model, "prompt": PROMPT, "max_tokens": LENGTH, "ignore_eos": True}
    body |= {"temperature": 0.8, "seed": 3, "stream": True}
    text = ""
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                choices = httpx.Response(200, content=line[6:]).json()["choices"]
                text += "".join(choice["text"] for choice in choices)
    return text


async def test_a_worker_without_the_adapter_never_gets_its_requests(deployment: Deployment) -> None:
    async with client(deployment) as http:
        expected = await ask(http, "sql", temperature=0, max_tokens=20)
        deployment.kill("gpu_worker")
        modules = deployment.environment.pop("QUIRE_LORA_MODULES")
        deployment.spawn("gpu_worker")
        plain = await ask(http, "quire-tiny", temperature=0, max_tokens=20)
        waiting = asyncio.ensure_future(ask(http, "sql", temperature=0, max_tokens=20))
        for _ in range(3):
            assert await ask(http, "quire-tiny", temperature=0, max_tokens=20) == plain
        assert not waiting.done()
        deployment.environment["QUIRE_LORA_MODULES"] = modules
        deployment.spawn("gpu_worker")
        assert await waiting == expected
        while "sql" not in [one["id"] for one in (await http.get("/v1/models")).json()["data"]]:
            await asyncio.sleep(0.1)


async def test_an_unknown_one(deployment: Deployment) -> None:
    async with client(deployment) as http:
        answer = await http.post("/v1/completions", json={"model": "nobody", "prompt": "x"})
    assert answer.status_code == 404
    assert "Available: 'quire-tiny', 'poet', 'sql'" in answer.json()["error"]["message"]


def test_an_adapter_that_does_not_fit_keeps_the_worker_from_starting(
    models: dict[str, Any], redis_server: RedisServer, tmp_path: Path
) -> None:
    config = models["directory"] / "sql" / "adapter_config.json"
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "adapter_config.json").write_text(config.read_text().replace('"r": 8', '"r": 4'))
    (broken / "adapter_model.safetensors").symlink_to(config.parent / "adapter_model.safetensors")
    deployment = Deployment(redis_server, tmp_path, QUIRE_LORA_MODULES=f"x={broken}")
    assert deployment.spawn("gpu_worker").wait(timeout=120) != 0
    log = (tmp_path / "gpu_worker.log").read_text()
    assert "lora_A.weight: ranks 8 and 8, where adapter_config.json means 4" in log.splitlines()[-1]
