"""The anthropic package: messages, streams, calls and their results, images, counts, errors."""

import anthropic
from checks import BASE_URL, IMAGE, IMAGE_TOKENS, KEY, MODEL, check, refusal, run

client = anthropic.Anthropic(base_url=BASE_URL.removesuffix("/v1"), api_key=KEY, max_retries=0, timeout=120)
FOX = [{"role": "user", "content": "Tell me a story about a fox."}]
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
CALLS = {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}, "max_tokens": 200}


GREEDY = {"temperature": 0}
"""Newer versions of the package know no parameters of sampling: `extra_body` has them."""


def ask(sampling=None, **fields):
    asked = {"model": MODEL, "messages": FOX, "max_tokens": 16, "extra_body": sampling or {}, **fields}
    return client.messages.create(**asked)


@check
def models():
    (model,) = client.models.list()
    assert (model.id, model.type, model.display_name) == (MODEL, "model", MODEL)
    assert client.models.retrieve(MODEL).created_at == model.created_at


@check
def message():
    answer = ask(GREEDY)
    (block,) = answer.content
    assert block.type == "text"
    assert block.text
    assert answer.stop_reason == "max_tokens"
    assert answer.usage.output_tokens == 16
    assert answer._request_id


@check
def message_with_every_usual_parameter():
    cached = {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    ask(
        system=[cached],
        metadata={"user_id": "someone"},
        stop_sequences=["END"],
        sampling={"temperature": 0.5, "top_k": 5, "top_p": 0.9},
        service_tier="auto",
        thinking={"type": "enabled", "budget_tokens": 1024},
        tools=[TOOL],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        extra_headers={"anthropic-beta": "something-2025-01-01"},
    )


@check
def documents():
    source = {"type": "text", "media_type": "text/plain", "data": "The fox is called Rust."}
    found = {"type": "search_result", "source": "a", "title": "b", "content": [{"type": "text", "text": "c"}]}
    document = {"type": "document", "source": source, "title": "Foxes"}
    asked = [{"role": "user", "content": [document, found, {"type": "text", "text": "Who?"}]}]
    counted = client.messages.count_tokens(model=MODEL, messages=asked)
    assert ask(messages=asked).usage.input_tokens <= counted.input_tokens


@check
def images():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IMAGE}}
    with_text = [{"type": "text", "text": "What is it?"}, image]
    asked, blind = [{"role": "user", "content": with_text}], [{"role": "user", "content": with_text[:1]}]
    usage = ask(messages=asked).usage
    tokens = usage.input_tokens + usage.cache_read_input_tokens
    assert tokens == client.messages.count_tokens(model=MODEL, messages=asked).input_tokens
    counted = client.messages.count_tokens(model=MODEL, messages=blind).input_tokens
    assert tokens == counted + IMAGE_TOKENS
    called = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Oslo", "days": 1}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": with_text}
    turns = [*FOX, {"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]
    assert ask(messages=turns, tools=[TOOL]).content


@check
def more_tokens_than_the_context_has_room_for():
    answer = ask(max_tokens=100_000)
    assert answer.stop_reason in ("end_turn", "model_context_window_exceeded"), answer.stop_reason
    assert ask(max_tokens=0).content == []


@check
def streamed_text_is_the_collected_one():
    fields = {"model": MODEL, "messages": FOX, "max_tokens": 24, "extra_body": GREEDY}
    with client.messages.stream(**fields) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = client.messages.create(**fields)
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


@check
def raw_events():
    kinds = [event.type for event in ask(stream=True)]
    assert kinds[0] == "message_start"
    assert kinds[1] == "content_block_start"
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


@check
async def asynchronous_stream():
    other = anthropic.AsyncAnthropic(base_url=client.base_url, api_key=KEY, max_retries=0)
    async with other.messages.stream(model=MODEL, messages=FOX, max_tokens=8) as stream:
        assert [text async for text in stream.text_stream]


@check
def stop_sequence():
    text = ask(GREEDY, max_tokens=40).content[0].text
    word = text.split()[3]
    answer = ask(GREEDY, max_tokens=40, stop_sequences=[word])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", word)


@check
def call_and_its_result():
    answer = ask(**CALLS)
    (call,) = answer.content
    assert (call.type, call.name, answer.stop_reason) == ("tool_use", "get_weather", "tool_use")
    assert call.input["city"] in ("Oslo", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Snow."}
    turns = [*FOX, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    assert ask(messages=turns, tools=[TOOL]).content


@check
def tool_runner():
    """It asks for a thread, to send each message once, and sends them all where threads are refused."""

    @anthropic.beta_tool
    def get_weather(city: str, days: int) -> str:
        """The weather of a city."""
        return "Snow."

    fields = {"tools": [get_weather], "tool_choice": CALLS["tool_choice"], "max_tokens": 200}
    runner = client.beta.messages.tool_runner(model=MODEL, messages=FOX, max_iterations=2, **fields)
    first, second = (reply.usage for reply in runner)
    prompts = [each.input_tokens + each.cache_read_input_tokens for each in (first, second)]
    assert prompts[1] > prompts[0] + first.output_tokens


@check
def streamed_call():
    with client.messages.stream(model=MODEL, messages=FOX, **CALLS) as stream:
        (call,) = stream.get_final_message().content
    assert call.input["city"] in ("Oslo", "Rome")


@check
def the_answer_goes_on():
    begun = {"role": "assistant", "content": "Once upon a"}
    assert ask(GREEDY, messages=[*FOX, begun]).content


@check
def count_and_cache():
    counted = client.messages.count_tokens(model=MODEL, messages=FOX, system="You tell stories." * 20)
    for _ in range(2):
        usage = ask(system="You tell stories." * 20).usage
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens
    assert usage.cache_read_input_tokens > 0


@check
def errors():
    refused = refusal(anthropic.BadRequestError, lambda: ask({"temperature": 9}))
    assert refused.body["error"]["type"] == "invalid_request_error"
    missing = refusal(anthropic.NotFoundError, lambda: ask(model="nobody"))
    assert missing.body["error"]["type"] == "not_found_error"
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    refusal(anthropic.BadRequestError, lambda: ask(messages=[{"role": "user", "content": [image]}]))


run()
