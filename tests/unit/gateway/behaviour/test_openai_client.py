"""The openai client, unmodified, against the gateway."""

import asyncio
import json

import openai
import pytest

from gateway.api.openai.translate import DEFAULTED
from proto.sampling_pb2 import STOP, PredictedTokens
from proto.tokenizer_pb2 import PromptInfo, TextChunk, TextDelta, TextRequest

STORY = "Once upon a time, a fox saw snow ❄."
MESSAGES = [{"role": "user", "content": "Tell me of a fox."}]


async def test_chat(gateway):
    answer = await gateway.openai().chat.completions.create(model="m", messages=MESSAGES)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer._request_id is not None
    assert answer.id.endswith(answer._request_id)
    assert answer.model == "m"
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", STORY)
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 12, 15)
    assert usage.prompt_tokens_details.cached_tokens == 2
    (request,) = gateway.tokenizer.requests
    assert request.request_id == answer._request_id
    assert [(m.role, m.content) for m in request.chat.messages] == [("user", "Tell me of a fox.")]
    assert not request.HasField("max_tokens")


@pytest.mark.parametrize("content", [STORY, [{"type": "text", "text": STORY}]])
async def test_a_prediction(gateway, content):
    async def generate(request, context):
        yield TextChunk(prompt=PromptInfo(tokens=3), predicted=PredictedTokens(accepted=4, rejected=2))
        delta = TextDelta(text=STORY, token_ids=[5] * 9, finish_reason=STOP)
        yield TextChunk(deltas=[delta], predicted=PredictedTokens(accepted=3))

    gateway.tokenizer.generate = generate
    ask = {"model": "m", "messages": MESSAGES, "prediction": {"type": "content", "content": content}}
    create = gateway.openai().chat.completions.create
    answer = await create(**ask)
    (request,) = gateway.tokenizer.requests
    assert request.prediction == STORY
    stream = await create(**ask, stream=True, stream_options={"include_usage": True})
    last = [chunk async for chunk in stream][-1]
    for usage in (answer.usage, last.usage):
        details = usage.completion_tokens_details
        assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (7, 2)
    answer = await create(**{**ask, "prediction": None})
    assert answer.usage.completion_tokens_details is None
    assert not gateway.tokenizer.requests[-1].prediction


async def test_chat_stream(gateway):
    stream = await gateway.openai().chat.completions.create(
        model="m", messages=MESSAGES, stream=True, n=2, stream_options={"include_usage": True}
    )
    texts, reasons, roles, chunks = ["", ""], [None, None], [None, None], []
    async for chunk in stream:
        chunks.append(chunk)
        for choice in chunk.choices:
            roles[choice.index] = roles[choice.index] or choice.delta.role
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [STORY, STORY[4:] + "Once"]
    assert (reasons, roles) == (["stop"] * 2, ["assistant"] * 2)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert (chunks[-1].usage.prompt_tokens, chunks[-1].usage.completion_tokens) == (3, 24)


async def test_chat_logprobs(gateway):
    ask = {"model": "m", "messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "max_tokens": 3}
    whole = await gateway.openai().chat.completions.create(**ask)
    content = whole.choices[0].logprobs.content
    assert [entry.token for entry in content] == ["Once", " upon", " a"]
    assert content[0].bytes == list(b"Once")
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("Once", -0.5), ("Once~1", -1.5)]
    streamed = []
    async for chunk in await gateway.openai().chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            streamed += choice.logprobs.content if choice.logprobs else []
    assert streamed == content


async def test_completion_of_several_prompts(gateway):
    answer = await gateway.openai().completions.create(model="m", prompt=["A", "B"], n=2, max_tokens=4)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    first, second = "Once upon a time", " upon a time,"
    assert [choice.text for choice in answer.choices] == [first, second] * 2
    assert {choice.finish_reason for choice in answer.choices} == {"length"}
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 16)
    assert sorted(request.text for request in gateway.tokenizer.requests) == ["A", "B"]
    seeds = {request.sampling.seed for request in gateway.tokenizer.requests}
    assert len(seeds) == 2, "equal prompts without a seed must be free to differ"


async def test_completion_stream_of_several_prompts(gateway):
    stream = await gateway.openai().completions.create(
        model="m", prompt=[[1, 2], [3]], max_tokens=4, stream=True
    )
    texts = ["", ""]
    async for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["Once upon a time"] * 2
    assert sorted(list(request.tokens.ids) for request in gateway.tokenizer.requests) == [[1, 2], [3]]


async def test_completion_logprobs(gateway):
    ask = {"model": "m", "prompt": "A", "logprobs": 1, "max_tokens": 11}
    whole = (await gateway.openai().completions.create(**ask)).choices[0].logprobs
    assert whole.tokens[:3] == ["Once", " upon", " a"]
    assert whole.token_logprobs[:2] == [-0.5, -0.5]
    assert whole.top_logprobs[1] == {" upon": -0.5}
    assert all(
        STORY[at:].startswith(token) for at, token in zip(whole.text_offset, whole.tokens, strict=True)
    )
    assert whole.text_offset[-1] == len(STORY) - 1
    offsets = []
    async for chunk in await gateway.openai().completions.create(**ask, stream=True):
        offsets += chunk.choices[0].logprobs.text_offset
    assert offsets == whole.text_offset


async def test_parameters_reach_the_tokenizer(gateway):
    await gateway.openai().completions.create(
        model="m",
        prompt=[5, 6],
        max_tokens=3,
        temperature=0,
        top_p=0.5,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=-2,
        stop=["x", "yz"],
        user="somebody",
        extra_body={
            "top_k": -1,
            "min_p": 0.25,
            "repetition_penalty": 1.5,
            "ignore_eos": True,
            "skip_special_tokens": False,
            "stop_token_ids": [4],
            "cache_salt": "s",
            "rolling_context": True,
        },
    )
    (request,) = gateway.tokenizer.requests
    assert request.rolling_context
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 0, 0.25)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (
        -2,
        2,
        1.5,
    )
    assert sampling.seed == 2**64 - 2
    assert not sampling.HasField("logprobs")
    assert (list(request.stop), list(request.stop_token_ids)) == (["x", "yz"], [4])
    assert (request.ignore_eos, request.skip_special_tokens, request.cache_salt) == (True, False, "s")
    assert (request.max_tokens, request.n, list(request.tokens.ids)) == (3, 1, [5, 6])


async def test_a_nucleus_of_nothing_is_the_likeliest_token(gateway):
    await gateway.openai().completions.create(model="m", prompt="A", top_p=0)
    (request,) = gateway.tokenizer.requests
    assert 0 < request.sampling.top_p < 1e-20


async def test_defaults(gateway):
    await gateway.openai().completions.create(model="m", prompt="A")
    (request,) = gateway.tokenizer.requests
    expected = TextRequest(
        request_id=request.request_id, text="A", max_tokens=16, skip_special_tokens=True, n=1
    )
    expected.tenant, expected.most_tokens = "127.0.0.1", 2**20
    expected.sampling.temperature = expected.sampling.top_p = expected.sampling.repetition_penalty = 1
    expected.sampling.typical_p, expected.sampling.xtc_threshold = 1, 0.1
    expected.sampling.seed = request.sampling.seed
    left_out = ["max_tokens", "min_p", "repetition_penalty", "temperature", "top_k", "top_p", "typical_p"]
    expected.left_out.extend(left_out)
    assert request == expected


@pytest.mark.parametrize(
    ("extra", "stated"),
    [
        ({"temperature": 1.0, "max_tokens": 16}, {"temperature", "max_tokens"}),
        ({"temperature": None, "top_k": 0, "min_p": 0.0}, {"top_k", "min_p"}),
        ({"top_p": 1, "repetition_penalty": 1}, {"top_p", "repetition_penalty"}),
        ({"rolling_context": True, "stream": True}, {"max_tokens"}),
        ({"use_beam_search": True, "n": 2}, DEFAULTED),
    ],
)
async def test_what_is_left_to_the_model(gateway, extra, stated):
    answer = await gateway.http.post("/v1/completions", json={"model": "m", "prompt": "A", **extra})
    assert answer.status_code == 200
    (request,) = gateway.tokenizer.requests
    assert set(request.left_out) == {*DEFAULTED, "max_tokens"} - stated


async def test_switches_of_the_template_go_along(gateway):
    extra = {"chat_template_kwargs": {"enable_thinking": False}}
    await gateway.openai().chat.completions.create(model="m", messages=MESSAGES, extra_body=extra)
    assert gateway.tokenizer.requests[-1].chat.template_arguments == '{"enable_thinking":false}'


async def test_a_chat_may_name_its_limit_in_two_ways(gateway):
    for limit in ("max_tokens", "max_completion_tokens"):
        await gateway.openai().chat.completions.create(model="m", messages=MESSAGES, **{limit: 3})
        assert "max_tokens" not in gateway.tokenizer.requests[-1].left_out
    await gateway.openai().chat.completions.create(model="m", messages=MESSAGES)
    assert "max_tokens" in gateway.tokenizer.requests[-1].left_out


async def test_token_ids(gateway):
    ask = {"model": "m", "extra_body": {"return_token_ids": True}, "max_tokens": 2}
    completion = await gateway.openai().completions.create(prompt="A", **ask)
    assert completion.choices[0].token_ids == [100, 101]
    assert completion.choices[0].prompt_token_ids == [7, 8, 9]
    chat = await gateway.openai().chat.completions.create(messages=MESSAGES, **ask)
    assert chat.choices[0].token_ids == [100, 101]
    assert chat.prompt_token_ids == [7, 8, 9]
    for create, prompt in (
        (gateway.openai().completions.create, {"prompt": "A"}),
        (gateway.openai().chat.completions.create, {"messages": MESSAGES}),
    ):
        tokens, prompts = [], []
        async for chunk in await create(stream=True, **prompt, **ask):
            fields = chunk.choices[0].model_extra
            tokens += fields.get("token_ids", [])
            # As with vLLM a choice of completions has them, and a chat as a whole.
            place = chunk.model_extra if "messages" in prompt else fields
            prompts += [place["prompt_token_ids"]] if "prompt_token_ids" in place else []
        assert (tokens, prompts) == ([100, 101], [[7, 8, 9]])


async def test_several_choices_of_a_chat_have_one_prompt(gateway):
    ask = {"messages": MESSAGES, "n": 2, "return_token_ids": True, "max_tokens": 2}
    *events, _ = await gateway.events("/v1/chat/completions", **ask)
    places = [number for number, event in enumerate(events) if "prompt_token_ids" in json.loads(event)]
    assert places == [0]


async def test_an_answer_can_be_sent_back(gateway):
    client = gateway.openai()
    answer = await client.chat.completions.create(model="m", messages=MESSAGES)
    parts = [{"type": "text", "text": "And "}, {"type": "input_text", "text": "then?"}]
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    turn = [*MESSAGES, answer.choices[0].message, {"role": "user", "content": parts, "name": "Bob"}]
    await client.chat.completions.create(
        model="m", messages=[{"role": "developer", "content": "Be kind."}, *turn, refused]
    )
    messages = gateway.tokenizer.requests[-1].chat.messages
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert [message.role for message in messages] == roles
    assert [message.content for message in messages[2:]] == [STORY, "And then?", "No."]
    assert [message.name for message in messages] == ["", "", "", "Bob", ""]


async def test_models(gateway):
    listed = (await gateway.openai().models.list()).data
    assert [(model.id, model.object, model.owned_by) for model in listed] == [("m", "model", "quire")]
    model = await gateway.openai().models.retrieve("m")
    assert model == listed[0]
    assert model.max_model_len == 2048
    assert model.defaults == {"temperature": 0.6}


async def test_errors_are_the_clients_own(gateway):
    client = gateway.openai()
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.chat.completions.create(model="nobody", messages=MESSAGES)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as bad:
        await client.completions.create(model="m", prompt="A", temperature=101)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("nobody")


async def test_the_synchronous_client(gateway):
    def ask() -> str:
        with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(ask) == STORY
