"""guidance, with its models for servers of vLLM and SGLang: a text may be anything that it can describe."""

import json
import re

from checks import BASE_URL, KEY, MODEL, check, run
from guidance import assistant, gen, select, system, user
from guidance import json as json_like
from guidance.models.experimental import SglangModel, VLLMModel

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "favourite_number": {"type": "integer"}},
    "required": ["name", "favourite_number"],
    "additionalProperties": False,
}


def said(part, kind=VLLMModel):
    """The model after an answer that `part` describes."""
    model = kind(MODEL, base_url=BASE_URL, api_key=KEY, echo=False)
    with system():
        model += "You tell stories."
    with user():
        model += "Tell me a story about a fox."
    with assistant():
        model += part
    return model


@check
def text():
    for kind in (VLLMModel, SglangModel):
        assert said(gen("story", max_tokens=8), kind)["story"]


@check
def text_up_to_a_word():
    """Nothing is captured, as the package does not read such a part itself. The whole text is there."""
    whole = str(said(gen(max_tokens=40, stop=" ", temperature=0.5)))
    answer = whole.rpartition("<|im_start|>assistant\n")[2]
    assert answer
    assert " " not in answer[:-1]


@check
def text_around_parts():
    part = (
        "My name is " + gen("name", regex="[A-Z][a-z]{2,7}") + ". I am " + select(["red", "grey"], name="fur")
    )
    for kind in (VLLMModel, SglangModel):
        model = said(part, kind)
        assert re.fullmatch("[A-Z][a-z]{2,7}", model["name"])
        assert model["fur"] in ("red", "grey")


@check
def object_with_a_schema():
    for kind in (VLLMModel, SglangModel):
        person = json.loads(said(json_like("person", schema=PERSON), kind)["person"])
        assert sorted(person) == ["favourite_number", "name"]


@check
def object_that_may_have_many_tokens():
    """What a schema forces comes several tokens at once, also where their number is bounded."""
    person = json.loads(said(json_like("person", schema=PERSON, max_tokens=200))["person"])
    assert sorted(person) == ["favourite_number", "name"]


run()
