"""The openai package: answers, streams, parsed answers, calls, images, responses, embeddings, errors."""

from typing import Literal

import openai
from checks import BASE_URL, IMAGE_TOKENS, IMAGE_URL, KEY, MODEL, check, refusal, run
from pydantic import BaseModel, ConfigDict, Field

client = openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0, timeout=120)
FOX = [{"role": "user", "content": "Tell me a story about a fox."}]


class Animal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=12)
    kind: Literal["fox", "owl"]
    age: int = Field(ge=0, le=99)


class GetWeather(BaseModel):
    """The weather of a city."""

    city: Literal["Oslo", "Rome"]
    days: int = Field(ge=1, le=9)


TOOLS = [openai.pydantic_function_tool(GetWeather, name="get_weather")]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


@check
def models():
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@check
def chat():
    answer = client.chat.completions.create(model=MODEL, messages=FOX, max_completion_tokens=16)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 16


@check
def chat_with_every_usual_parameter():
    client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "developer", "content": "Be brief."}, *FOX],
        frequency_penalty=0.1,
        logit_bias={"5": -1},
        logprobs=True,
        max_completion_tokens=8,
        metadata={"a": "b"},
        modalities=["text"],
        n=2,
        parallel_tool_calls=True,
        presence_penalty=0.1,
        prompt_cache_key="key",
        reasoning_effort="low",
        response_format={"type": "text"},
        safety_identifier="somebody",
        seed=1,
        service_tier="auto",
        stop=["zzz"],
        store=False,
        temperature=0.5,
        top_logprobs=2,
        top_p=0.9,
        user="somebody",
        verbosity="low",
    )


@check
def same_seed_same_answer():
    ask = {"model": MODEL, "messages": FOX, "max_tokens": 16, "seed": 7, "temperature": 1}
    first, second = (client.chat.completions.create(**ask).choices[0].message.content for _ in range(2))
    stream = client.chat.completions.create(**ask, stream=True)
    third = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert first == second == third


@check
async def asynchronous_stream_with_usage():
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY) as other:
        stream = await other.chat.completions.create(
            model=MODEL, messages=FOX, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage.completion_tokens == 8
    assert chunks[-2].choices[0].finish_reason == "length"


@check
def streaming_helper():
    with client.chat.completions.stream(model=MODEL, messages=FOX, temperature=0) as stream:
        said = [event for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(event.delta for event in said) == final.choices[0].message.content


@check
def parsed_answer():
    answer = client.chat.completions.parse(
        model=MODEL, messages=FOX, response_format=Animal, temperature=1, seed=1, max_tokens=300
    )
    assert isinstance(answer.choices[0].message.parsed, Animal)


@check
def parsed_answer_of_the_streaming_helper():
    with client.chat.completions.stream(
        model=MODEL, messages=FOX, response_format=Animal, seed=2, max_tokens=300
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.done" in kinds
    assert isinstance(final.choices[0].message.parsed, Animal)


@check
def parsed_call():
    answer = client.chat.completions.parse(
        model=MODEL, messages=FOX, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, seed=3
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather)


@check
def parsed_call_of_the_streaming_helper():
    with client.chat.completions.stream(
        model=MODEL, messages=FOX, tools=TOOLS, tool_choice=NAMED, seed=4
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    (call,) = final.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather)


@check
def call_and_its_result():
    ask = {"model": MODEL, "tools": TOOLS, "seed": 5, "max_tokens": 200}
    message = client.chat.completions.create(messages=FOX, tool_choice="required", **ask).choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "It rains."} for call in message.tool_calls
    ]
    turn = [*FOX, message, *results]
    answer = client.chat.completions.create(messages=turn, **ask | {"max_tokens": 8})
    assert answer.usage.prompt_tokens > 0


@check
def images():
    def tokens(*parts):
        ask = {"model": MODEL, "messages": [{"role": "user", "content": [*parts]}], "max_tokens": 4}
        return client.chat.completions.create(**ask).usage.prompt_tokens

    text = {"type": "text", "text": "What is it?"}
    image = {"type": "image_url", "image_url": {"url": IMAGE_URL, "detail": "low"}}
    assert tokens(image, text, image) == tokens(text) + 2 * IMAGE_TOKENS
    elsewhere = {"type": "image_url", "image_url": {"url": "https://example.com/fox.png"}}
    refused = refusal(openai.BadRequestError, lambda: tokens(elsewhere))
    assert refused.param == "messages[0].content"


@check
def completions():
    answer = client.completions.create(
        model=MODEL, prompt=["The fox", "The owl"], max_tokens=4, logprobs=2, echo=True, n=2
    )
    assert len(answer.choices) == 4
    assert answer.choices[0].text.startswith("The fox")
    stream = client.completions.create(model=MODEL, prompt="The fox", max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


@check
def responses_that_go_on():
    ask = {"model": MODEL, "max_output_tokens": 8}
    first = client.responses.create(instructions="Be brief.", input="A fox.", **ask)
    assert first.output_text
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(input="And?", previous_response_id=first.id, **ask)
    assert second.usage.input_tokens > first.usage.output_tokens
    assert len(client.responses.input_items.list(second.id).data) == 3
    third = {"input": "More.", "previous_response_id": second.id, "model": MODEL}
    counted = client.responses.input_tokens.count(**third).input_tokens
    assert client.responses.create(max_output_tokens=8, **third).usage.input_tokens == counted
    client.responses.delete(first.id)
    refusal(openai.NotFoundError, lambda: client.responses.retrieve(first.id))
    client.responses.create(input=[*FOX, *second.output, *FOX], store=False, **ask)


@check
def responses_about_an_image():
    def asked(*parts):
        said = [{"role": "user", "content": [{"type": "input_text", "text": "What is it?"}, *parts]}]
        return client.responses.create(model=MODEL, input=said, max_output_tokens=8)

    image = {"type": "input_image", "image_url": IMAGE_URL, "detail": "auto"}
    first = asked(image)
    assert first.usage.input_tokens == asked().usage.input_tokens + IMAGE_TOKENS
    kept = client.responses.input_items.list(first.id).data[0].content
    assert [part.type for part in kept] == ["input_text", "input_image"]
    ask = {"model": MODEL, "max_output_tokens": 8, "previous_response_id": first.id}
    assert client.responses.create(input="And?", **ask).usage.input_tokens > first.usage.input_tokens


@check
def conversations():
    made = client.conversations.create(items=FOX, metadata={"about": "foxes"})
    ask = {"model": MODEL, "max_output_tokens": 8, "conversation": made.id}
    first = client.responses.create(input="And?", **ask)
    assert first.conversation.id == made.id
    *_, last = client.responses.create(input="And then?", stream=True, **ask)
    second = last.response
    assert second.usage.input_tokens > first.usage.input_tokens
    items = client.conversations.items.list(made.id, order="asc", limit=2)
    roles = [item.role for item in items]
    assert roles == ["user", "user", "assistant", "user", "assistant"], roles
    client.conversations.items.delete(first.output[0].id, conversation_id=made.id)
    assert client.conversations.update(made.id, metadata={}).metadata == {}
    client.conversations.delete(made.id)
    refusal(openai.NotFoundError, lambda: client.conversations.retrieve(made.id))


@check
def responses_streamed_and_parsed():
    with client.responses.stream(model=MODEL, input=FOX, max_output_tokens=300, text_format=Animal) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert said == final.output_text
    assert isinstance(final.output_parsed, Animal)


@check
def responses_with_a_call_and_its_result():
    tools = [{"type": "function", **TOOLS[0]["function"]}]
    answer = client.responses.parse(
        model=MODEL, input=FOX, tools=tools, tool_choice="required", parallel_tool_calls=False
    )
    (call,) = [item for item in answer.output if item.type == "function_call"]
    GetWeather.model_validate_json(call.arguments)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "It rains."}
    again = {"input": [*FOX, *answer.output, result], "max_output_tokens": 8}
    assert client.responses.create(model=MODEL, tools=tools, **again).output


@check
def embeddings():
    found = client.embeddings.create(model=MODEL, input=["A fox.", "An owl."])
    assert len(found.data) == 2
    assert len(found.data[0].embedding) > 1


@check
def raw_responses():
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=FOX, max_tokens=2)
    assert raw.headers["x-request-id"]
    assert raw.parse().choices


@check
def errors():
    create = client.chat.completions.create
    assert refusal(openai.NotFoundError, lambda: create(model="nobody", messages=FOX)).param == "model"
    assert refusal(openai.BadRequestError, lambda: create(model=MODEL, messages=FOX, n=0)).param == "n"


run()
