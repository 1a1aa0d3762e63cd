"""openai-agents: runs, streams, tools, outputs of a type, handoffs; some of them over responses, too."""

from typing import Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import BASE_URL, KEY, MODEL, check, run
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

set_tracing_disabled(True)
FOX = "Tell me a story about a fox."


class Animal(BaseModel):
    kind: Literal["fox", "owl"]
    age: int = Field(ge=0, le=99)


@function_tool
def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


def agent(**fields):
    """Each check has an event loop of its own, and so a client of its own."""
    model = OpenAIChatCompletionsModel(MODEL, openai_client=AsyncOpenAI(base_url=BASE_URL, api_key=KEY))
    settings = fields.pop("settings", {})
    return Agent(
        name="agent",
        instructions="Be brief.",
        model=model,
        model_settings=ModelSettings(extra_args={"seed": 1}, **settings),
        **fields,
    )


@check
async def text():
    assert (await Runner.run(agent(settings={"max_tokens": 16}), FOX)).final_output


@check
async def stream():
    found = Runner.run_streamed(agent(settings={"max_tokens": 16}), FOX)
    assert [event async for event in found.stream_events()]
    assert found.final_output


@check
async def output_of_a_type():
    found = await Runner.run(agent(output_type=Animal), FOX)
    assert isinstance(found.final_output, Animal)


@check
async def a_tool_and_then_text():
    found = await Runner.run(agent(tools=[get_weather], settings={"tool_choice": "required"}), FOX)
    results = [item for item in found.new_items if item.type == "tool_call_output_item"]
    assert results[0].output.startswith("It rains in")


@check
async def tools_and_then_an_output_of_a_type():
    """The model may call or answer at each turn. So there are runs with both."""
    for seed in range(60):
        asked = agent(tools=[get_weather], output_type=Animal, settings={"temperature": 2.0, "top_p": 1.0})
        asked.model_settings.extra_args = {"seed": seed}
        found = await Runner.run(asked, FOX, max_turns=40)
        assert isinstance(found.final_output, Animal)
        if any(item.type == "tool_call_output_item" for item in found.new_items):
            return
    raise AssertionError("no run with a call")


@check
async def a_streamed_tool():
    asked = agent(
        tools=[get_weather],
        settings={"tool_choice": "get_weather"},
        tool_use_behavior="stop_on_first_tool",
    )
    found = Runner.run_streamed(asked, FOX)
    names = [event.name async for event in found.stream_events() if event.type == "run_item_stream_event"]
    assert "tool_called" in names
    assert found.final_output.startswith("It rains in")


@check
async def handoff():
    other = agent(output_type=Animal)
    other.name = "zoologist"
    found = await Runner.run(agent(handoffs=[other], settings={"tool_choice": "required"}), FOX)
    assert found.last_agent.name == "zoologist"
    assert isinstance(found.final_output, Animal)


@check
async def responses():
    """A tool, then an answer that is streamed, then another that goes on from it by its id."""
    client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY)
    asked = Agent(
        name="agent",
        model=OpenAIResponsesModel(MODEL, openai_client=client),
        model_settings=ModelSettings(tool_choice="required", max_tokens=100, extra_body={"seed": 1}),
        tools=[get_weather],
    )
    found = Runner.run_streamed(asked, FOX)
    names = [event.name async for event in found.stream_events() if event.type == "run_item_stream_event"]
    assert names[0] == "tool_called"
    more = await Runner.run(asked, "And?", previous_response_id=found.last_response_id)
    assert more.final_output


@check
async def an_output_of_a_type_over_responses():
    client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY)
    model = OpenAIResponsesModel(MODEL, openai_client=client)
    found = await Runner.run(Agent(name="agent", model=model, output_type=Animal), FOX)
    assert isinstance(found.final_output, Animal)


run()
