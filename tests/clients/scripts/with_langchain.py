"""langchain-openai: messages, images, streams, `bind_tools`, `with_structured_output`, embeddings."""

from typing import Literal

from checks import BASE_URL, IMAGE, IMAGE_TOKENS, KEY, MODEL, check, run
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, Field

chat = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key=KEY, max_retries=0, seed=1)
FOX = "Tell me a story about a fox."


class Animal(BaseModel):
    """An animal."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["fox", "owl"]
    age: int = Field(ge=0, le=99)


@tool
def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


@check
def messages():
    answer = chat.invoke([("system", "Be brief."), ("user", FOX)], max_tokens=8)
    assert answer.content
    assert answer.usage_metadata["output_tokens"] == 8


@check
def images():
    image = {"type": "image", "base64": IMAGE, "mime_type": "image/png"}
    text = {"type": "text", "text": "What is it?"}
    found = [chat.invoke([HumanMessage(parts)], max_tokens=4) for parts in ([text], [text, image])]
    blind, seen = (answer.usage_metadata["input_tokens"] for answer in found)
    assert seen == blind + IMAGE_TOKENS


@check
def batch():
    assert all(answer.content for answer in chat.batch([FOX, "And an owl?"], max_tokens=4))


@check
async def asynchronous_stream_with_usage():
    whole = None
    async for chunk in chat.astream(FOX, max_tokens=8, stream_usage=True):
        whole = chunk if whole is None else whole + chunk
    assert whole.content
    assert whole.usage_metadata["output_tokens"] == 8


@check
def bound_tools():
    asked = HumanMessage(FOX)
    called = chat.bind_tools([get_weather], tool_choice="any").invoke([asked])
    results = [get_weather.invoke(call) for call in called.tool_calls]
    assert all(isinstance(each, ToolMessage) and each.content.startswith("It rains in") for each in results)
    assert results
    answer = chat.bind_tools([get_weather]).invoke([asked, called, *results], max_tokens=8)
    assert answer.usage_metadata["input_tokens"] > 0


@check
def streamed_calls():
    whole = None
    for chunk in chat.bind_tools([get_weather], tool_choice="get_weather").stream(FOX):
        whole = chunk if whole is None else whole + chunk
    (call,) = whole.tool_calls
    assert call["args"]["city"] in ("Oslo", "Rome")


@check
def structured_output_by_a_schema():
    assert isinstance(chat.with_structured_output(Animal).invoke(FOX), Animal)


@check
def structured_output_by_a_call():
    asked = chat.with_structured_output(Animal, method="function_calling", strict=True, include_raw=True)
    found = asked.invoke(FOX)
    assert found["parsing_error"] is None
    assert isinstance(found["parsed"], Animal)


@check
def streamed_structured_output():
    *_, last = chat.with_structured_output(Animal.model_json_schema() | {"title": "Animal"}).stream(FOX)
    assert Animal.model_validate(last)


@check
def log_probabilities():
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(FOX, max_tokens=3)
    assert len(answer.response_metadata["logprobs"]["content"]) == 3


@check
def texts():
    assert OpenAI(model=MODEL, base_url=BASE_URL, api_key=KEY, max_tokens=4).invoke("The fox")


@check
def embeddings():
    # With the check of lengths it would send token numbers of OpenAI's own models.
    embed = OpenAIEmbeddings(model=MODEL, base_url=BASE_URL, api_key=KEY, check_embedding_ctx_length=False)
    assert len(embed.embed_documents(["A fox.", "An owl."])) == 2
    assert embed.embed_query("A fox.")


run()
