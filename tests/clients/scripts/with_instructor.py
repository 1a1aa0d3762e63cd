"""instructor: answers as pydantic models, by calls and by schemas, whole and in parts."""

from typing import Literal

import instructor
import openai
from checks import BASE_URL, KEY, MODEL, check, run
from pydantic import BaseModel, Field

FOX = [{"role": "user", "content": "Which animal is in the snow?"}]
ASK = {"model": MODEL, "messages": FOX, "max_tokens": 300, "max_retries": 0, "seed": 1}


class Animal(BaseModel):
    """An animal."""

    kind: Literal["fox", "owl"]
    age: int = Field(ge=0, le=99)


def client(mode):
    return instructor.from_openai(openai.OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0), mode=mode)


@check
def by_a_call():
    found, raw = client(instructor.Mode.TOOLS).chat.completions.create_with_completion(
        response_model=Animal, **ASK
    )
    assert isinstance(found, Animal)
    assert raw.usage.completion_tokens


@check
def by_a_schema():
    found = client(instructor.Mode.JSON_SCHEMA).chat.completions.create(response_model=Animal, **ASK)
    assert isinstance(found, Animal)


@check
def by_a_call_in_parts():
    parts = list(client(instructor.Mode.TOOLS).chat.completions.create_partial(response_model=Animal, **ASK))
    assert parts[-1].kind in ("fox", "owl")


@check
def several_by_a_schema():
    class Animals(BaseModel):
        animals: list[Animal] = Field(min_length=2, max_length=2)

    found = client(instructor.Mode.JSON_SCHEMA).chat.completions.create(response_model=Animals, **ASK)
    assert len(found.animals) == 2


@check
def several_in_parts():
    class Animals(BaseModel):
        animals: list[Animal] = Field(min_length=2, max_length=2)

    parts = list(
        client(instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(response_model=Animals, **ASK)
    )
    assert Animals.model_validate(parts[-1].model_dump())


@check
async def asynchronous():
    asking = instructor.from_openai(openai.AsyncOpenAI(base_url=BASE_URL, api_key=KEY))
    assert isinstance(await asking.chat.completions.create(response_model=Animal, **ASK), Animal)


run()
