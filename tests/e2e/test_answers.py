"""Whole answers through all four processes, with the openai client, held against transformers."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import openai
import pytest
import pytest_asyncio

from tests.support import oracle
from tests.support.deployment import SHIPPED_MODEL, Deployment

PROMPTS = [
    "Tell me a story about a fox.",
    "What is 7 + 5?",
    "List five fruits.",
    "Who are you?",
    "Give me JSON for a person.",
]


@pytest.fixture
def client(deployment: Deployment) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest_asyncio.fixture
async def async_client(deployment: Deployment) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{deployment.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["quire-tiny"]


@pytest.mark.parametrize("text", PROMPTS)
def test_a_greedy_chat_is_what_transformers_says(client: openai.OpenAI, text: str) -> None:
    prompt = oracle.chat_prompt(SHIPPED_MODEL, text)
    expected = oracle.greedy(SHIPPED_MODEL, prompt, 400)
    answer = client.chat.completions.create(
        model="quire-tiny",
        messages=[{"role": "user", "content": text}],
        temperature=0,
        max_tokens=400,
        extra_body={"return_token_ids": True},
    )
    choice = answer.choices[0]
    assert choice.model_extra is not None
    assert choice.model_extra["token_ids"] == expected
    _, tokenizer = oracle.load(SHIPPED_MODEL)
    assert choice.message.content == tokenizer.decode(expected, skip_special_tokens=True)
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(expected)


def test_a_message_goes_on_under_rules_as_with_transformers(client: openai.OpenAI) -> None:
    """A bias, a bad word, and more tokens than the model would say."""
    _, tokenizer = oracle.load(SHIPPED_MODEL)
    messages = [{"role": "user", "content": PROMPTS[0]}, {"role": "assistant", "content": "Once upon"}]
    prompt = tokenizer.apply_chat_template(messages, continue_final_message=True, return_dict=False)
    free = oracle.greedy(SHIPPED_MODEL, prompt, 300)
    unwanted, word = free[3], tokenizer.decode([free[9]]).strip()
    spelled = [tokenizer.encode(text, add_special_tokens=False) for text in (word, " " + word)]
    least = len(free) + 5
    expected = oracle.greedy(
        SHIPPED_MODEL,
        prompt,
        least + 20,
        sequence_bias=[[[unwanted], -100.0]],
        bad_words_ids=spelled,
        min_new_tokens=least,
    )
    answer = client.post(
        "/chat/completions",
        body={
            "model": "quire-tiny",
            "messages": messages,
            "continue_final_message": True,
            "temperature": 0,
            "max_tokens": least + 20,
            "logit_bias": {str(unwanted): -100},
            "bad_words": [word],
            "min_tokens": least,
            "return_token_ids": True,
            "detokenize": False,
        },
        cast_to=openai.BaseModel,
    )
    assert answer.model_extra is not None
    (choice,) = answer.model_extra["choices"]
    assert answer.model_extra["prompt_token_ids"] == prompt
    assert choice["token_ids"] == expected
    assert choice["message"]["content"] == ""
    assert unwanted not in expected
    assert free[:4] != expected[:4]


def test_a_story_about_a_fox_is_about_a_fox(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="quire-tiny", messages=[{"role": "user", "content": PROMPTS[0]}], temperature=0
    )
    text = answer.choices[0].message.content or ""
    assert "fox" in text
    assert text.count(".") >= 3
    assert answer.choices[0].finish_reason == "stop"


async def test_many_at_once_are_each_what_transformers_says(async_client: openai.AsyncOpenAI) -> None:
    """Prompts of many lengths in one ragged batch, past their end tokens, streamed."""
    _, tokenizer = oracle.load(SHIPPED_MODEL)
    text = "Once upon a time a small fox lived near the river. " * 20
    prompts = [tokenizer.encode(text)[: 1 + 13 * number] for number in range(16)]

    async def ask(prompt: list[int]) -> list[int]:
        tokens: list[int] = []
        stream = await async_client.completions.create(
            model="quire-tiny",
            prompt=prompt,
            temperature=0,
            max_tokens=24,
            stream=True,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        async for chunk in stream:
            for choice in chunk.choices:
                assert choice.model_extra is not None
                tokens += choice.model_extra.get("token_ids") or []
        return tokens

    answers = await asyncio.gather(*map(ask, prompts))
    assert answers == [oracle.greedy(SHIPPED_MODEL, prompt, 24, end=False) for prompt in prompts]


async def test_a_seed_gives_the_same_answer_in_any_company(async_client: openai.AsyncOpenAI) -> None:
    async def ask(seed: int) -> str:
        answer = await async_client.completions.create(
            model="quire-tiny", prompt="Once upon a time", temperature=1.0, max_tokens=40, seed=seed
        )
        return answer.choices[0].text

    alone = [await ask(seed) for seed in range(4)]
    assert len(set(alone)) > 1
    together = await asyncio.gather(*(ask(seed) for seed in list(range(4)) * 4))
    assert together == alone * 4


def test_samples_of_one_prompt_differ_and_repeat_with_the_seed(client: openai.OpenAI) -> None:
    def ask() -> list[str]:
        answer = client.completions.create(
            model="quire-tiny", prompt="Once upon a time", n=4, temperature=1.0, max_tokens=30, seed=11
        )
        return [choice.text for choice in sorted(answer.choices, key=lambda choice: choice.index)]

    first = ask()
    assert len(set(first)) == 4
    assert ask() == first


def test_the_stream_is_the_answer(client: openai.OpenAI) -> None:
    question = {
        "model": "quire-tiny",
        "messages": [{"role": "user", "content": PROMPTS[0]}],
        "temperature": 0,
    }
    whole = client.chat.completions.create(**question)  # type: ignore[call-overload]
    text, usage = "", None
    with client.chat.completions.create(  # type: ignore[call-overload]
        **question, stream=True, stream_options={"include_usage": True}
    ) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
    assert text == whole.choices[0].message.content
    assert usage == whole.usage.model_copy(update={"prompt_tokens_details": usage.prompt_tokens_details})


def test_a_stop_string_never_shows(client: openai.OpenAI) -> None:
    question = {
        "model": "quire-tiny",
        "messages": [{"role": "user", "content": PROMPTS[0]}],
        "temperature": 0,
    }
    whole = client.chat.completions.create(**question).choices[0].message.content  # type: ignore[call-overload]
    stop = whole[len(whole) // 2 :][:9]
    shown = ""
    for chunk in client.chat.completions.create(**question, stop=[stop], stream=True):  # type: ignore[call-overload]
        for choice in chunk.choices:
            shown += choice.delta.content or ""
            reason = choice.finish_reason
    assert shown == whole[: whole.index(stop)]
    assert reason == "stop"


def test_a_repeated_prompt_comes_out_of_the_cache(client: openai.OpenAI) -> None:
    prompt = "The quick brown fox jumps over the lazy dog while the cat looks on from the wall. " * 4
    cached = []
    for _ in range(2):
        answer = client.completions.create(model="quire-tiny", prompt=prompt, max_tokens=1, temperature=0)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens or 0)
    assert cached[0] == 0
    assert cached[1] >= (answer.usage.prompt_tokens - 1) // 16 * 16 > 0


def test_a_line_that_each_request_has_anew_leaves_the_cache_of_use(deployment: Deployment) -> None:
    """As Claude Code sends it, at the beginning of its system prompt."""
    usages = []
    for checksum in ("eb6c6", "07d1f"):
        body = {
            "model": "quire-tiny",
            "max_tokens": 4,
            "system": [
                {"type": "text", "text": f"x-anthropic-billing-header: cc_entrypoint=cli; cch={checksum};"},
                {"type": "text", "text": "You know all about badgers. " * 12},
            ],
            "messages": [{"role": "user", "content": "Where do they live?"}],
        }
        answer = httpx.post(f"{deployment.url}/v1/messages", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        usages.append(answer.json()["usage"])
    assert [usage["cache_read_input_tokens"] > 0 for usage in usages] == [False, True]
    assert usages[1]["input_tokens"] <= 16, "what no whole block holds is computed again"
