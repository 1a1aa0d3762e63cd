"""litellm, which translates for others: answers, streams, shapes, calls, images, embeddings, a router."""

import json
import os
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it would fetch a table of prices

import litellm
from checks import BASE_URL, IMAGE_TOKENS, IMAGE_URL, KEY, MODEL, check, refusal, run
from pydantic import BaseModel

ASK = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": KEY, "num_retries": 0}
FOX = [{"role": "user", "content": "Tell me a story about a fox."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
            "required": ["city"],
        },
    },
}


class Animal(BaseModel):
    kind: Literal["fox", "owl"]


@check
def chat():
    answer = litellm.completion(**ASK, messages=FOX, max_tokens=8)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 8


@check
async def asynchronous_stream():
    stream = await litellm.acompletion(
        **ASK, messages=FOX, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    whole = litellm.stream_chunk_builder(chunks, messages=FOX)
    assert whole.choices[0].message.content
    assert whole.usage.completion_tokens == 8


@check
def answer_in_a_shape():
    answer = litellm.completion(**ASK, messages=FOX, response_format=Animal, seed=1, max_tokens=100)
    assert Animal.model_validate_json(answer.choices[0].message.content)


@check
def any_object():
    answer = litellm.completion(
        **ASK, messages=FOX, response_format={"type": "json_object"}, seed=1, max_tokens=400, temperature=0
    )
    text, reason = answer.choices[0].message.content, answer.choices[0].finish_reason
    assert text.startswith("{")
    assert reason == "length" or isinstance(json.loads(text), dict)


@check
def call_and_its_result():
    asked = litellm.completion(**ASK, messages=FOX, tools=[WEATHER], tool_choice="required", seed=2)
    message = asked.choices[0].message
    assert asked.choices[0].finish_reason == "tool_calls"
    assert json.loads(message.tool_calls[0].function.arguments)["city"] in ("Oslo", "Rome")
    results = [
        {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": "It rains."}
        for call in message.tool_calls
    ]
    turn = [*FOX, message.model_dump(), *results]
    assert litellm.completion(**ASK, messages=turn, tools=[WEATHER], max_tokens=8).choices


@check
def streamed_call():
    choice = {"type": "function", "function": {"name": "get_weather"}}
    stream = litellm.completion(**ASK, messages=FOX, tools=[WEATHER], tool_choice=choice, seed=3, stream=True)
    whole = litellm.stream_chunk_builder(list(stream))
    assert json.loads(whole.choices[0].message.tool_calls[0].function.arguments)["city"] in ("Oslo", "Rome")


@check
def images():
    text = {"type": "text", "text": "What is it?"}
    parts = [text, {"type": "image_url", "image_url": {"url": IMAGE_URL}}]
    asked = [[{"role": "user", "content": content}] for content in ([text], parts)]
    found = [litellm.completion(**ASK, messages=messages, max_tokens=4) for messages in asked]
    assert found[1].usage.prompt_tokens == found[0].usage.prompt_tokens + IMAGE_TOKENS


@check
def texts():
    ask = ASK | {"model": f"text-completion-openai/{MODEL}"}
    assert litellm.text_completion(**ask, prompt="The fox", max_tokens=4).choices[0].text


@check
def its_entry_for_vllm():
    ask = ASK | {"model": f"hosted_vllm/{MODEL}"}
    answer = litellm.completion(**ask, messages=FOX, max_tokens=4, top_k=4, min_p=0.1)
    assert answer.choices[0].message.content


@check
def embeddings():
    found = litellm.embedding(**ASK, input=["A fox.", "An owl."])
    assert len(found.data) == 2


@check
def router():
    entry = {"model_name": "any", "litellm_params": ASK}
    answer = litellm.Router(model_list=[entry]).completion(model="any", messages=FOX, max_tokens=4)
    assert answer.choices[0].message.content


@check
def errors():
    error = refusal(litellm.BadRequestError, lambda: litellm.completion(**ASK, messages=FOX, temperature=5))
    assert "temperature" in str(error)


run()
