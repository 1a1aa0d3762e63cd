"""llama-index, its entry for servers like OpenAI's: chats, streams, texts, calls, structures, embeddings."""

from typing import Literal

from checks import BASE_URL, KEY, MODEL, check, run
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

SERVER = {"api_base": BASE_URL, "api_key": KEY, "max_retries": 0}
llm = OpenAILike(
    model=MODEL,
    **SERVER,
    is_chat_model=True,
    is_function_calling_model=True,
    should_use_structured_outputs=True,
    context_window=2048,
    max_tokens=200,
)
FOX = "Tell me a story about a fox."


class Animal(BaseModel):
    """An animal."""

    kind: Literal["fox", "owl"]
    age: int = Field(ge=0, le=99)


def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


WEATHER = FunctionTool.from_defaults(get_weather)


@check
def chat():
    assert llm.chat([ChatMessage(role="user", content=FOX)], max_tokens=8).message.content


@check
async def asynchronous_stream():
    stream = await llm.astream_chat([ChatMessage(role="user", content=FOX)], max_tokens=8)
    assert "".join([part.delta or "" async for part in stream])


@check
def texts():
    text = OpenAILike(model=MODEL, **SERVER, is_chat_model=False, max_tokens=4)
    assert text.complete("The fox").text
    assert "".join(part.delta for part in text.stream_complete("The fox"))


@check
def a_call_that_the_model_must_make():
    found = llm.chat_with_tools([WEATHER], user_msg=FOX, tool_required=True)
    calls = llm.get_tool_calls_from_response(found)
    assert calls[0].tool_kwargs["city"] in ("Oslo", "Rome")


@check
def predict_and_call():
    found = llm.predict_and_call([WEATHER], user_msg=FOX, tool_required=True)
    assert "It rains in" in str(found)


@check
def structured_answer():
    found = llm.structured_predict(Animal, PromptTemplate("Which animal is in: {text}?"), text="snow")
    assert isinstance(found, Animal)


@check
def structured_answer_by_a_call():
    by_call = OpenAILike(
        model=MODEL, **SERVER, is_chat_model=True, is_function_calling_model=True, max_tokens=200
    )
    found = by_call.structured_predict(Animal, PromptTemplate("Which animal is in: {text}?"), text="snow")
    assert isinstance(found, Animal)


@check
def embeddings():
    embed = OpenAILikeEmbedding(model_name=MODEL, **SERVER)
    assert len(embed.get_text_embedding_batch(["A fox.", "An owl."])) == 2
    assert embed.get_query_embedding("A fox.")


run()
