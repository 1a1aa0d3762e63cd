"""haystack, its parts for OpenAI: chats, streams, calls that are run, structures, texts and embeddings."""

import json

from checks import BASE_URL, KEY, MODEL, check, run
from haystack import Document
from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret

SERVER = {"api_base_url": BASE_URL, "api_key": Secret.from_token(KEY), "max_retries": 0}
FOX = [ChatMessage.from_user("Tell me a story about a fox.")]
CITY = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"]}
WEATHER = Tool(
    name="weather", description="The weather.", parameters=CITY, function=lambda city: f"It rains in {city}."
)


def generator(**options):
    return OpenAIChatGenerator(model=MODEL, **SERVER, generation_kwargs={"seed": 1} | options)


@check
def chat():
    (reply,) = generator(max_completion_tokens=8).run(FOX)["replies"]
    assert reply.text
    assert reply.meta["usage"]["completion_tokens"] == 8


@check
def stream():
    pieces = []
    (reply,) = generator(max_completion_tokens=8).run(FOX, streaming_callback=pieces.append)["replies"]
    assert "".join(piece.content for piece in pieces) == reply.text


@check
async def asynchronous_chat():
    (reply,) = (await generator(max_completion_tokens=8).run_async(FOX))["replies"]
    assert reply.text


@check
def a_call_that_is_run():
    replies = generator(tool_choice="required").run(FOX, tools=[WEATHER])["replies"]
    call = replies[0].tool_calls[0]
    result = WEATHER.invoke(**call.arguments)
    assert "It rains in" in result
    said = ChatMessage.from_tool(tool_result=result, origin=call)
    assert generator(max_completion_tokens=4).run([*FOX, *replies, said], tools=[WEATHER])["replies"][0].text


@check
def structured_answer():
    form = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
    (reply,) = generator(response_format=form).run(FOX)["replies"]
    assert json.loads(reply.text)["city"] in ("Oslo", "Rome")


@check
def embeddings():
    length = len(OpenAITextEmbedder(model=MODEL, **SERVER).run("A fox.")["embedding"])
    found = OpenAIDocumentEmbedder(model=MODEL, **SERVER, progress_bar=False).run(
        [Document(content="An owl.")]
    )
    assert len(found["documents"][0].embedding) == length


run()
