"""dspy: predictions in JSON, by schemas and by native calls of functions, and embeddings."""

import os
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or litellm would fetch a table of prices

import dspy
import litellm
from checks import BASE_URL, KEY, MODEL, check, run

NAME = f"openai/{MODEL}"
# What litellm cannot know of a model that it has no entry for.
litellm.register_model(
    {
        NAME: {
            "litellm_provider": "openai",
            "mode": "chat",
            "supports_response_schema": True,
            "supports_function_calling": True,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
        }
    }
)
SERVER = {"api_base": BASE_URL, "api_key": KEY, "cache": False, "num_retries": 0}
# The engine that asks litellm what a model can do. The other one takes unknown models for the plainest.
lm = dspy.LM(NAME, **SERVER, engine="litellm", max_tokens=400, temperature=1.0)
dspy.configure(lm=lm, adapter=dspy.JSONAdapter())


class Sighting(dspy.Signature):
    """Tell which animal was seen."""

    report: str = dspy.InputField()
    animal: Literal["fox", "owl"] = dspy.OutputField()
    count: Literal[1, 2, 3] = dspy.OutputField()


@check
def text():
    assert lm("The fox", max_tokens=8)[0]


@check
def text_by_its_own_engine():
    assert dspy.LM(NAME, **SERVER, max_tokens=8)("The fox")[0]


@check
def several_answers():
    assert len(lm("The fox", max_tokens=8, n=2)) == 2


@check
def prediction():
    found = dspy.Predict(Sighting)(report="Something red ran over the snow.")
    assert found.animal in ("fox", "owl")
    assert found.count in (1, 2, 3)


@check
async def asynchronous_prediction():
    found = await dspy.Predict(Sighting).acall(report="Something red ran over the snow.")
    assert found.animal in ("fox", "owl")


@check
def native_calls():
    def get_weather(city: Literal["Oslo", "Rome"]) -> str:
        """The weather of a city."""
        return f"It rains in {city}."

    class Ask(dspy.Signature):
        """Find out about the weather."""

        question: str = dspy.InputField()
        tools: list[dspy.Tool] = dspy.InputField()
        outputs: dspy.ToolCalls = dspy.OutputField()

    with dspy.context(adapter=dspy.JSONAdapter(use_native_function_calling=True)):
        predict = dspy.Predict(Ask)
        found = predict(
            question="Does it rain?", tools=[dspy.Tool(get_weather)], config={"tool_choice": "required"}
        )
    assert found.outputs.tool_calls[0].name == "get_weather"


@check
def embeddings():
    embed = dspy.Embedder(NAME, api_base=BASE_URL, api_key=KEY, caching=False)
    assert embed(["A fox.", "An owl."]).shape[0] == 2


run()
