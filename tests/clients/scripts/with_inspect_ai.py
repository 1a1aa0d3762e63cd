"""inspect-ai, by its entry for servers like OpenAI's: an evaluation, a schema, tools, log probabilities."""

import os

from checks import BASE_URL, KEY, MODEL, check, run

os.environ |= {"QUIRE_BASE_URL": BASE_URL, "QUIRE_API_KEY": KEY, "INSPECT_DISPLAY": "none"}

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

NAME = f"openai-api/quire/{MODEL}"
FOX = "Tell me a story about a fox."


class Animal(BaseModel):
    legs: bool
    wings: bool


@tool
def double():
    async def execute(wings: bool) -> str:
        """Tell whether it flies.

        Args:
            wings: Whether there are wings.
        """
        return "It flies." if wings else "It runs."

    return execute


@check
def evaluation():
    task = Task(
        dataset=[Sample(input=FOX, target="fox"), Sample(input="Tell me of an owl.", target="owl")],
        solver=generate(),
        scorer=includes(),
    )
    (log,) = eval(task, model=NAME, log_dir="logs", max_tokens=40, seed=1)
    assert log.status == "success", log.error
    assert len(log.samples) == 2
    assert all(sample.output.completion for sample in log.samples)


@check
def evaluation_with_a_tool():
    task = Task(
        dataset=[Sample(input=FOX, target="fox")],
        solver=[use_tools(double(), tool_choice="any"), generate(tool_calls="single")],
        scorer=includes(),
    )
    (log,) = eval(task, model=NAME, log_dir="logs", max_tokens=100, seed=1)
    assert log.status == "success", log.error
    assert any(message.role == "tool" for message in log.samples[0].messages)


@check
async def answer_in_a_shape():
    schema = ResponseSchema(name="animal", json_schema=json_schema(Animal), strict=True)
    config = GenerateConfig(response_schema=schema, max_tokens=200, seed=1)
    output = await get_model(NAME).generate([ChatMessageUser(content=FOX)], config=config)
    assert Animal.model_validate_json(output.completion)


@check
async def log_probabilities():
    config = GenerateConfig(logprobs=True, top_logprobs=2, max_tokens=3)
    output = await get_model(NAME).generate(FOX, config=config)
    assert len(output.choices[0].logprobs.content) == 3


run()
