"""pydantic-ai: agents with tools, images, and outputs by a tool, native and prompted."""

from base64 import b64decode
from typing import Literal

from checks import BASE_URL, IMAGE, IMAGE_TOKENS, KEY, MODEL, check, run
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, BinaryContent, NativeOutput, PromptedOutput, ToolOutput, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=KEY))
SETTINGS = {"seed": 1, "max_tokens": 400}
FOX = "Tell me a story about a fox."


class Animal(BaseModel):
    """An animal."""

    kind: Literal["fox", "owl"]
    age: int = Field(ge=0, le=99)


class Anything(BaseModel):
    """Any object: this output is asked for by words alone."""

    model_config = ConfigDict(extra="allow")


@check
def text():
    found = Agent(model, instructions="Be brief.", model_settings=SETTINGS).run_sync(FOX)
    assert found.output
    assert found.usage.output_tokens


@check
def images():
    agent, image = (
        Agent(model, model_settings={"max_tokens": 4}),
        BinaryContent(b64decode(IMAGE), media_type="image/png"),
    )
    blind, seen = (agent.run_sync(["What is it?", *more]).usage.input_tokens for more in ([], [image]))
    assert seen == blind + IMAGE_TOKENS


@check
async def stream():
    async with Agent(model, model_settings={"max_tokens": 8}).run_stream(FOX) as found:
        parts = [part async for part in found.stream_text(delta=True)]
    assert "".join(parts)


@check
def tool_output():
    found = Agent(model, output_type=ToolOutput(Animal), model_settings=SETTINGS).run_sync(FOX)
    assert isinstance(found.output, Animal)


@check
def native_output():
    found = Agent(model, output_type=NativeOutput(Animal), model_settings=SETTINGS).run_sync(FOX)
    assert isinstance(found.output, Animal)


@check
def prompted_output():
    agent = Agent(model, output_type=PromptedOutput(Anything), model_settings=SETTINGS | {"temperature": 0})
    assert isinstance(agent.run_sync(FOX).output, Anything)


@check
async def streamed_output():
    async with Agent(model, output_type=Animal, model_settings=SETTINGS).run_stream(FOX) as found:
        assert isinstance(await found.get_output(), Animal)


@check
def tools_until_the_output():
    agent, asked = Agent(model, output_type=Animal, model_settings={"max_tokens": 200}), []

    @agent.tool_plain
    def get_weather(city: Literal["Oslo", "Rome"]) -> str:
        """The weather of a city."""
        asked.append(city)
        return f"It rains in {city}."

    # The model draws between the tool and the output. So there are runs with both.
    drawing = {"temperature": 2.0, "top_p": 1.0}
    for seed in range(20):
        found = agent.run_sync(
            FOX, model_settings={**drawing, "seed": seed}, usage_limits=UsageLimits(request_limit=60)
        )
        assert isinstance(found.output, Animal)
        if asked:
            return
    raise AssertionError("no run with a tool")


run()
