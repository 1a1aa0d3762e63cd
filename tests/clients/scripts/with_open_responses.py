"""The cases of the Open Responses compliance suite for text, tools and images.

The suite itself needs Bun. Its cases are made here anew: the same kinds of requests, and every answer and
event is read with the types of its specification.
"""

import json

import httpx
from checks import BASE_URL, IMAGE_TOKENS, IMAGE_URL, KEY, MODEL, check, run
from openresponses_types import types

EVENTS = {
    next(iter(kind.model_fields["type"].annotation)).value: kind
    for name, kind in vars(types).items()
    if name.endswith("StreamingEvent")
}
"""Of a stream, by the names that they have there."""
PLACE = {
    "type": "object",
    "properties": {"location": {"type": "string"}},
    "required": ["location"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place.",
    "parameters": PLACE,
}
WEATHER = [{"type": "message", "role": "user", "content": "What is the weather in San Francisco?"}]
# The shipped model is too small to be sure to call a function of its own accord.
CALLS = {"input": WEATHER, "tools": [TOOL], "tool_choice": "required"}

client = httpx.Client(base_url=BASE_URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=120)


def said(role, content, **more):
    return {"type": "message", "role": role, "content": content, **more}


def ask(**fields):
    answer = client.post("/responses", json={"model": MODEL, **fields})
    answer.raise_for_status()
    response = types.ResponseResource.model_validate(answer.json())
    assert response.status == "completed", response.status
    assert response.output
    return response


def stream(**fields):
    """The names of the events of a stream, each of which was read, and the response at its end."""
    names, last = [], None
    with client.stream("POST", "/responses", json={"model": MODEL, "stream": True, **fields}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                last = json.loads(line.removeprefix("data: "))
                EVENTS[last["type"]].model_validate(last)
                names.append(last["type"])
    return names, types.ResponseResource.model_validate(last["response"])


@check
def basic_text_response():
    assert ask(input=[said("user", "Say hello in three words.")]).output[0].type == "message"


@check
def streaming_response():
    names, response = stream(input=[said("user", "Count from 1 to 5.")])
    assert names[0] == "response.created"
    assert names[-1] == "response.completed"
    assert response.status == "completed"


@check
def system_prompt():
    ask(input=[said("system", "You are a pirate."), said("user", "Say hello.")])


@check
def multi_turn_conversation():
    ask(input=[said("user", "My name is Alice."), said("assistant", "Hello!"), said("user", "My name is?")])


@check
def assistant_message_phase():
    ask(
        input=[said("user", "Hi."), said("assistant", "Hello!", phase="final_answer"), said("user", "Again.")]
    )


@check
def tool_calling():
    (call,) = ask(**CALLS).output
    assert (call.type, call.name) == ("function_call", "get_weather")
    assert set(json.loads(call.arguments)) == {"location"}


@check
def tool_calling_streaming():
    names, response = stream(**CALLS)
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= set(names)
    assert response.output[0].type == "function_call"


@check
def image_input():
    text = {"type": "input_text", "text": "What do you see in this image?"}
    image = {"type": "input_image", "image_url": IMAGE_URL}
    blind, seen = (ask(input=[said("user", parts)]).usage.input_tokens for parts in ([text], [text, image]))
    assert seen == blind + IMAGE_TOKENS


run()
