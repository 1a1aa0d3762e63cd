"""smolagents: its model, and an agent that calls tools."""

from checks import BASE_URL, KEY, MODEL, check, run
from smolagents import OpenAIModel, ToolCallingAgent, tool

model = OpenAIModel(model_id=MODEL, api_base=BASE_URL, api_key=KEY, seed=1, max_tokens=400)
FOX = [{"role": "user", "content": [{"type": "text", "text": "Tell me a story about a fox."}]}]


@tool
def count_letters(word: str) -> int:
    """The number of letters of a word.

    Args:
        word: The word.
    """
    return len(word)


@check
def text():
    assert model.generate(FOX, max_tokens=8).content


@check
def stream():
    parts = list(model.generate_stream(FOX, max_tokens=8))
    assert "".join(part.content or "" for part in parts)


@check
def call():
    message = model.generate(FOX, tools_to_call_from=[count_letters])
    assert message.tool_calls[0].function.name == "count_letters"


@check
def agent_that_calls_tools():
    agent = ToolCallingAgent(tools=[count_letters], model=model, max_steps=4, verbosity_level=0)
    assert agent.run("How many letters has the word fox?") is not None
    calls = [call for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or []]
    assert {call.name for call in calls} <= {"count_letters", "final_answer"}
    assert calls


@check
def agent_that_streams():
    agent = ToolCallingAgent(
        tools=[count_letters], model=model, max_steps=2, stream_outputs=True, verbosity_level=0
    )
    assert list(agent.run("How many letters has the word fox?", stream=True))


run()
