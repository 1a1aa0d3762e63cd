"""Embeddings through all four processes, held against transformers' hidden states."""

import asyncio
import base64
import json
import re
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import pytest_asyncio
import torch
from torch import Tensor

from tests.support import oracle
from tests.support.asking import ask
from tests.support.deployment import ROOT, SHIPPED_MODEL, Deployment

TEXTS = ["A fox.", "The owl sat in a tree, and it snowed.", "What is 7 + 5? " * 60, "x"]
WAYS = ["mean", "last"]

torch.set_num_threads(1)  # the worker needs the others


@pytest_asyncio.fixture
async def client(deployment: Deployment) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{deployment.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def post(deployment: Deployment) -> Any:
    """Asks with a body of these fields; gives status and answer."""

    def ask_for(**fields: Any) -> tuple[int, Any]:
        url = f"{deployment.url}/v1/embeddings"
        answer = httpx.post(url, json={"model": "quire-tiny", **fields}, timeout=60)
        return answer.status_code, answer.json()

    return ask_for


def check(found: list[list[float]], expected: list[Tensor]) -> None:
    torch.testing.assert_close(torch.tensor(found), torch.stack(expected), atol=2e-5, rtol=1e-3)


def vectors(answer: Any) -> list[list[float]]:
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return [one.embedding for one in answer.data]


@pytest.mark.parametrize("pooling", WAYS)
async def test_texts_and_tokens(client: openai.AsyncOpenAI, pooling: str) -> None:
    _, tokenizer = oracle.load(SHIPPED_MODEL)
    tokens = [tokenizer(text)["input_ids"] for text in TEXTS]
    expected = [oracle.embedding(SHIPPED_MODEL, text, pooling) for text in TEXTS]
    for texts in (TEXTS, tokens, TEXTS):  # the second time out of the cache, and the third
        answer = await client.embeddings.create(
            model="quire-tiny", input=texts, extra_body={"pooling": pooling}
        )
        check(vectors(answer), expected)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, tokens))
    for text in (TEXTS[0], tokens[0]):  # the last token is what a decoder's own way is
        answer = await client.embeddings.create(model="quire-tiny", input=text)
        check(vectors(answer), [oracle.embedding(SHIPPED_MODEL, TEXTS[0], "last")])


async def test_beside_streams(client: openai.AsyncOpenAI) -> None:
    questions = [{"temperature": 1.0, "seed": seed} for seed in range(3)]
    alone = [await ask(client, **question) for question in questions]
    streams = asyncio.gather(*(ask(client, **question) for question in questions))
    texts = [f"{number} foxes" for number in range(80)]
    answer = await client.embeddings.create(model="quire-tiny", input=texts)
    assert await streams == alone
    check(vectors(answer), [oracle.embedding(SHIPPED_MODEL, text, "last") for text in texts])


def test_formats(post: Any) -> None:
    _, floats = post(input="A fox.", encoding_format="float")
    _, packed = post(input="A fox.", encoding_format="base64")
    numbers = floats["data"][0]["embedding"]
    data = base64.b64decode(packed["data"][0]["embedding"])
    assert struct.pack(f"<{len(numbers)}f", *numbers) == data
    assert (floats["object"], floats["data"][0]["object"]) == ("list", "embedding")
    assert floats["model"] == "quire-tiny"


def test_fewer_dimensions(post: Any) -> None:
    _, answer = post(input="A fox.", dimensions=10)
    first = oracle.embedding(SHIPPED_MODEL, "A fox.", "last")[:10]
    check([answer["data"][0]["embedding"]], [first / first.norm()])


def test_vectors_of_all_tokens(deployment: Deployment) -> None:
    ask = {"model": "quire-tiny", "input": TEXTS, "task": "token_embed"}
    for _ in range(2):  # the second time beside cached blocks
        answer = httpx.post(f"{deployment.url}/pooling", json=ask, timeout=60).json()
        for one, text in zip(answer["data"], TEXTS, strict=True):
            states = oracle.hidden_states(SHIPPED_MODEL, text)
            wanted = torch.nn.functional.normalize(states, dim=1)
            torch.testing.assert_close(torch.tensor(one["data"]), wanted, atol=2e-5, rtol=1e-3)
        assert answer["usage"]["prompt_tokens"] == sum(len(one["data"]) for one in answer["data"])
    packed = httpx.post(
        f"{deployment.url}/pooling", json={**ask, "encoding_format": "base64"}, timeout=60
    ).json()
    numbers = [number for vector in answer["data"][0]["data"] for number in vector]
    assert base64.b64decode(packed["data"][0]["data"]) == struct.pack(f"<{len(numbers)}f", *numbers)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", [1]]}, "input[1]"),
        ({"input": [[1], [-1]]}, "input[1][0]"),
        ({"input": [10**6]}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 10**6}, "dimensions"),
        ({"input": "a", "pooling": "cls"}, "pooling"),
        ({"input": "word " * 10_000}, "input"),
        ({"input": ["a"] * 2049}, "input"),
    ],
)
def test_what_is_refused(post: Any, fields: dict[str, Any], param: str) -> None:
    status, answer = post(**fields)
    assert status == 400
    assert (answer["error"]["type"], answer["error"]["param"]) == ("invalid_request_error", param)


def test_as_long_as_the_context(deployment: Deployment, post: Any) -> None:
    models = httpx.get(f"{deployment.url}/v1/models", timeout=60).json()
    longest = models["data"][0]["max_model_len"]
    tokens = [20 + place % 500 for place in range(longest)]
    _, answer = post(input=tokens, pooling="mean")
    check([answer["data"][0]["embedding"]], [oracle.embedding(SHIPPED_MODEL, tokens, "mean")])
    status, answer = post(input=[*tokens, 20])
    assert (status, answer["error"]["param"]) == (400, "input")


def test_the_documentation_runs(deployment: Deployment) -> None:
    section = (ROOT / "docs" / "use.md").read_text().split("## Embeddings\n")[1].split("\n## ")[0]
    shell, code = (re.search(f"```{kind}\n(.*?)```", section, re.S) for kind in ("sh", "python"))
    assert shell
    assert code
    said = []
    for command in (["bash", "-c", shell[1]], [sys.executable, "-c", code[1]]):
        command[-1] = command[-1].replace("http://127.0.0.1:8000", deployment.url)
        said.append(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    answer, likeness = map(json.loads, said)
    assert [len(one["embedding"]) for one in answer["data"]] == [4, 4]
    assert [abs(number) <= 1 for number in likeness] == [True, True]
