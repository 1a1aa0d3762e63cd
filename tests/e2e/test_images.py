"""Images over real processes: answers are what transformers computes, whoever dies on the way."""

import asyncio
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import openai
import pytest

from ops.launcher.redis_server import RedisServer
from tests.support.asking import attempts
from tests.support.deployment import Deployment
from tests.support.seeing import Seeing, chatting, logits_with, picture

FOX, OWL, OTHER = picture(60, 44), picture(36, 52, 1), picture(60, 44, 2)
BLOCK = 16
LENGTH = 40
LONG = 500
SERVICES = ("gpu_worker", "scheduler_svc", "tokenizer_svc")
ABOUT = "This is a picture of animals in a forest. Look at it carefully, and then say what you see."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": LENGTH}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    return chatting(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def images(
    model: Seeing, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """A deployment of a model that sees."""
    deployment = Deployment(redis_server, tmp_path_factory.mktemp("deployment"), model.directory)
    try:
        yield deployment.start()
        deployment.assert_clean()
        assert list(deployment.redis.scan_iter(f"{deployment.prefix}images:*")) == []
    finally:
        deployment.stop()


def url_of(image: bytes) -> str:
    return f"data:image/png;base64,{b64encode(image).decode()}"


def message(*parts: str | bytes) -> dict[str, Any]:
    """What a user says: texts and images."""
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": "image_url", "image_url": {"url": url_of(part)}}
        for part in parts
    ]
    return {"role": "user", "content": content}


@dataclass(frozen=True)
class Answer:
    """What came of a question. Lists of tokens are their ids."""

    prompt: list[int]
    tokens: list[int]
    text: str
    cached: int
    """Tokens of the prompt that were in the cache."""


async def ask(deployment: Deployment, *messages: dict[str, Any], **fields: Any) -> Answer:
    extra = {"return_token_ids": True, "ignore_eos": True}
    async with openai.AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0) as client:
        found: Any = await client.chat.completions.create(
            model=deployment.model_name, messages=messages, extra_body=extra, **GREEDY | fields
        )
    (choice,), usage = found.choices, found.usage
    assert usage.prompt_tokens == len(found.prompt_token_ids)
    return Answer(
        found.prompt_token_ids,
        choice.token_ids,
        choice.message.content,
        usage.prompt_tokens_details.cached_tokens,
    )


def assert_as_transformers(model: Seeing, answer: Answer, images: list[bytes]) -> None:
    """Each token of a greedy answer is the most likely one behind those before it."""
    assert len(answer.tokens) == LENGTH
    most_likely = logits_with(model, answer.prompt + answer.tokens, images).argmax(1).tolist()
    assert answer.tokens == most_likely[len(answer.prompt) - 1 : -1]


def full_blocks(tokens: int) -> int:
    """Of a prompt of `tokens` tokens that was there before: tokens that are not computed again."""
    return (tokens - 1) // BLOCK * BLOCK


async def test_a_conversation_says_what_transformers_says(model: Seeing, images: Deployment) -> None:
    first = message(ABOUT, FOX, "What is it?")
    answer = await ask(images, first)
    assert answer.cached == 0
    assert_as_transformers(model, answer, [FOX])

    said = {"role": "assistant", "content": "A fox."}
    turns = [first, said, message("And", OWL, "this?")]
    more = await ask(images, *turns)
    place = answer.prompt.index(model.vision.placeholder)
    assert more.cached == len(answer.prompt) // BLOCK * BLOCK > place
    assert_as_transformers(model, more, [FOX, OWL])

    again = await ask(images, *turns)
    assert again.cached == full_blocks(len(more.prompt))
    assert again.tokens == more.tokens


async def test_another_image_of_the_same_size_shares_what_is_before_it_alone(
    model: Seeing, images: Deployment
) -> None:
    answer, other = [await ask(images, message(ABOUT, image, "Who?")) for image in (FOX, OTHER)]
    assert other.prompt == answer.prompt
    place = answer.prompt.index(model.vision.placeholder)
    assert other.cached == place // BLOCK * BLOCK > 0
    assert other.tokens != answer.tokens
    assert_as_transformers(model, other, [OTHER])


async def test_every_api_has_the_same_prompt_of_it(images: Deployment) -> None:
    answer = await ask(images, message(ABOUT, FOX, "Where is it?"))
    text, length = answer.text, len(answer.prompt)
    data = b64encode(FOX).decode()
    common = {"model": images.model_name, "temperature": 0, "ignore_eos": True}
    about, question = {"text": ABOUT}, {"text": "Where is it?"}
    source = {"type": "base64", "media_type": "image/png", "data": data}
    of_anthropic = [
        about | {"type": "text"},
        {"type": "image", "source": source},
        question | {"type": "text"},
    ]
    of_responses = [
        about | {"type": "input_text"},
        {"type": "input_image", "image_url": url_of(FOX), "detail": "auto"},
        question | {"type": "input_text"},
    ]
    async with httpx.AsyncClient(base_url=images.url, timeout=60) as http:
        body = {"max_tokens": LENGTH, "messages": [{"role": "user", "content": of_anthropic}]}
        found = (await http.post("/v1/messages", json=common | body)).json()
        assert found["content"][0]["text"] == text
        usage = found["usage"]
        assert usage["cache_read_input_tokens"] == full_blocks(length)
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == length

        body = {"max_output_tokens": LENGTH, "input": [{"role": "user", "content": of_responses}]}
        found = (await http.post("/v1/responses", json=common | body)).json()
        assert found["output"][0]["content"][0]["text"] == text
        assert found["usage"]["input_tokens"] == length
        assert found["usage"]["input_tokens_details"]["cached_tokens"] == full_blocks(length)

        body = {"messages": [message(ABOUT, FOX, "Where is it?")]}
        counted = (await http.post("/tokenize", json=common | body)).json()
        assert counted["tokens"] == answer.prompt


async def test_what_cannot_be_read_is_refused(images: Deployment) -> None:
    broken = FOX[: len(FOX) // 2]
    with pytest.raises(openai.BadRequestError) as refused:
        await ask(images, message(ABOUT, broken))
    assert refused.value.param == "messages"
    parts = [{"type": "input_image", "image_url": url_of(broken)}]
    body = {"model": images.model_name, "input": [{"role": "user", "content": parts}]}
    async with httpx.AsyncClient(base_url=images.url, timeout=60) as http:
        answer = await http.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")


@pytest.mark.parametrize("service", SERVICES)
async def test_an_answer_goes_on_when_a_process_is_killed(images: Deployment, service: str) -> None:
    asked = message(ABOUT, OWL, "Tell me a story of it.", FOX)
    fields = {"temperature": 0.9, "seed": 3, "max_tokens": LONG}
    expected = (await ask(images, asked, **fields)).tokens
    assert len(expected) == LONG
    for attempt in attempts():
        going = asyncio.ensure_future(ask(images, asked, **fields))
        await asyncio.sleep(0.15)
        attempt.hit = not going.done()
        images.kill(service)
        images.spawn(service)
        assert (await going).tokens == expected
    images.wait_ready()


async def test_what_was_seen_is_counted(images: Deployment) -> None:
    await ask(images, message("Another one:", picture(40, 40, 3)))
    deadline = asyncio.get_running_loop().time() + 60
    async with httpx.AsyncClient(base_url=images.url, timeout=60) as http:
        while asyncio.get_running_loop().time() < deadline:
            shown = (await http.get("/metrics")).text
            found = re.findall(
                r"^quire:(images_seen|image_seconds)_total{.*} ([0-9.e+-]+)$", shown, re.MULTILINE
            )
            if len(found) == 2 and all(float(value) > 0 for _, value in found):
                return
            await asyncio.sleep(0.2)
    raise AssertionError(f"no images are counted: {found}")
