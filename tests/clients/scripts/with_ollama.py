"""The ollama package: chats, prompts, streams, shapes, calls and their results, images, models, errors."""

import json
from base64 import b64decode

import ollama
from checks import BASE_URL, IMAGE, IMAGE_TOKENS, MODEL, check, refusal, run

client = ollama.Client(host=BASE_URL.removesuffix("/v1"), timeout=120)
FOX = [{"role": "user", "content": "Tell me a story about a fox."}]
SHORT = {"num_predict": 12, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"Snow in {city}."


@check
def models():
    (model,) = client.list().models
    assert model.model == MODEL
    assert client.show(MODEL).modelinfo["quire.context_length"] > 0
    assert "vision" in client.show(f"{MODEL}:latest").capabilities
    assert [one.name for one in client.ps().models] == [MODEL]


@check
def chat():
    answer = client.chat(MODEL, FOX, options=SHORT)
    assert answer.message.content
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "length", 12)
    assert answer.total_duration >= answer.eval_duration > 0
    assert answer.prompt_eval_count > 0


@check
def streamed_text_is_the_collected_one():
    *parts, last = client.chat(MODEL, FOX, options=SHORT, stream=True)
    whole = client.chat(MODEL, FOX, options=SHORT)
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert not any(part.done for part in parts)
    assert (last.done, last.eval_count, last.message.content) == (True, 12, "")


@check
async def asynchronous_stream():
    other = ollama.AsyncClient(host=BASE_URL.removesuffix("/v1"))
    parts = [part async for part in await other.chat(MODEL, FOX, options=SHORT, stream=True)]
    assert parts[-1].done


@check
def generate():
    whole = client.generate(MODEL, "A fox", system="Be brief.", options=SHORT)
    assert whole.response
    streamed = client.generate(MODEL, "A fox", system="Be brief.", options=SHORT, stream=True)
    assert "".join(part.response for part in streamed) == whole.response
    raw = client.generate(MODEL, "Once upon a", raw=True, options=SHORT)
    assert raw.prompt_eval_count < whole.prompt_eval_count
    assert client.generate(MODEL).done_reason == "load"


@check
def images():
    blind = client.chat(MODEL, FOX, options=SHORT).prompt_eval_count
    for image in (IMAGE, b64decode(IMAGE)):
        answer = client.chat(MODEL, [{**FOX[0], "images": [image]}], options=SHORT)
        assert answer.prompt_eval_count == blind + IMAGE_TOKENS
    assert client.generate(MODEL, "What is it?", images=[IMAGE], options=SHORT).response


@check
def shapes():
    answer = client.chat(MODEL, FOX, format=SCHEMA, options={"num_predict": 60})
    assert json.loads(answer.message.content)["city"] in ("Oslo", "Rome")
    answer = client.chat(MODEL, FOX, options={**SHORT, "stop": ["a"], "top_k": 5, "repeat_penalty": 1.1})
    assert "a" not in answer.message.content


@check
def functions_are_offered_and_results_are_read():
    client.chat(MODEL, FOX, tools=[get_weather], options=SHORT)
    called = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    turns = [
        *FOX,
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "content": get_weather("Oslo"), "tool_name": "get_weather"},
    ]
    assert client.chat(MODEL, turns, tools=[get_weather], options=SHORT).message.content


@check
def embeddings():
    answer = client.embed(MODEL, ["A fox.", "An owl."], dimensions=4)
    assert [len(one) for one in answer.embeddings] == [4, 4]
    assert abs(sum(part * part for part in answer.embeddings[0]) - 1) < 1e-5
    assert answer.prompt_eval_count > 2
    whole = client.embed(MODEL, "A fox.").embeddings[0]
    assert len(whole) > 4
    assert list(client.embeddings(MODEL, "A fox.").embedding) == list(whole)


@check
def log_probabilities():
    answer = client.chat(MODEL, FOX, options=SHORT, logprobs=True, top_logprobs=2)
    assert "".join(one.token for one in answer.logprobs) == answer.message.content
    assert all(len(one.top_logprobs) == 2 for one in answer.logprobs)


@check
def errors():
    missing = refusal(ollama.ResponseError, lambda: client.chat("nobody", FOX))
    assert (missing.status_code, "nobody" in missing.error) == (404, True)
    wrong = refusal(ollama.ResponseError, lambda: client.chat(MODEL, FOX, options={"temperature": 9}))
    assert (wrong.status_code, "temperature" in wrong.error) == (400, True)
    refusal(ollama.ResponseError, lambda: list(client.generate("nobody", "A", stream=True)))


run()
