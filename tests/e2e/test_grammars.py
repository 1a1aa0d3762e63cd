"""Answers that follow a grammar, through all four processes: what clients ask for is what they get."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema_rs
import psutil
import pytest

from ops.bench.robust.json_answers import Answers, requests
from ops.bench.robust.json_schemas import Schema
from tests.support.deployment import Deployment

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 3},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def ask(deployment: Deployment, **fields: Any) -> httpx.Response:
    body = {
        "model": "quire-tiny",
        "messages": [{"role": "user", "content": "Give me JSON for a person."}],
        "temperature": 1,
        "top_p": 1,
        "max_tokens": 200,
        **fields,
    }
    return httpx.post(f"{deployment.url}/v1/chat/completions", json=body, timeout=60)


def texts(response: httpx.Response) -> list[str]:
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    assert {choice["finish_reason"] for choice in choices} == {"stop"}
    return [choice["message"]["content"] for choice in choices]


def strict(schema: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def test_answers_at_temperature_1_are_valid(deployment: Deployment) -> None:
    """Beside each other and beside free text; three samples each; with the same seed the same once more."""

    def one(seed: int) -> list[str]:
        return texts(ask(deployment, response_format=strict(PERSON), seed=seed, n=3))

    with ThreadPoolExecutor(8) as pool:
        free = pool.submit(ask, deployment, seed=1)
        answers = [text for found in pool.map(one, range(16)) for text in found]
        assert free.result().status_code == 200
    for text in answers:
        jsonschema_rs.validate(PERSON, json.loads(text))
    assert len(set(answers)) > 24
    assert one(5) == answers[15:18]


def test_every_way_to_ask(deployment: Deployment) -> None:
    json.loads(texts(ask(deployment, response_format={"type": "json_object"}, temperature=0))[0])
    (text,) = texts(ask(deployment, structured_outputs={"choice": ["left", "right"]}))
    assert text in ("left", "right")
    (text,) = texts(ask(deployment, guided_regex="[0-9]{3}-[a-f]{2}"))
    assert len(text) == 6
    (text,) = texts(ask(deployment, structured_outputs={"grammar": 'root ::= "a" [0-9] "z"'}))
    assert (text[0], text[-1], len(text)) == ("a", "z", 3)


def test_a_structural_tag(deployment: Deployment) -> None:
    """As vLLM and SGLang take it, of a chat and of a text that goes on."""
    value = {"type": "json_schema", "json_schema": PERSON}
    text = {"type": "any_text", "excludes": ["<"], "max_chars": 40}
    form = {
        "type": "sequence",
        "elements": [
            text,
            {"type": "tag", "begin": "<person>", "content": value, "end": ["</person>", "</p>"]},
        ],
    }
    tag = {"type": "structural_tag", "format": form}
    (said,) = texts(ask(deployment, response_format=tag))
    completion = {
        "model": "quire-tiny",
        "prompt": "Once",
        "max_tokens": 300,
        "structured_outputs": {"structural_tag": json.dumps(tag)},
    }
    found = httpx.post(f"{deployment.url}/v1/completions", json=completion, timeout=60).json()
    for each in (said, found["choices"][0]["text"]):
        before, _, rest = each.partition("<person>")
        assert len(before) <= 40
        person, end = rest[: rest.rindex("</")], rest[rest.rindex("</") :]
        assert end in ("</person>", "</p>")
        jsonschema_rs.validate(PERSON, json.loads(person))


def test_a_stream_is_the_same_text(deployment: Deployment) -> None:
    whole = texts(ask(deployment, response_format=strict(PERSON), seed=77))[0]
    streamed = ask(deployment, response_format=strict(PERSON), seed=77, stream=True)
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(deltas) == whole


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": strict({"type": "strin"})}, "response_format", "strin"),
        ({"guided_regex": "a("}, "guided_regex", "unclosed"),
        ({"structured_outputs": {"grammar": "start: (("}}, "structured_outputs", ""),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "token", "token": "<|x|>"}}},
            "response_format",
            "format: the model has no special token '<|x|>'",
        ),
        ({"guided_regex": "a", "use_beam_search": True, "beam_width": 2}, "use_beam_search", "grammar"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos", "grammar"),
    ],
)
def test_what_cannot_be_followed_is_a_400(deployment: Deployment, fields, param, said) -> None:
    refused = ask(deployment, **({"temperature": 0} | fields))
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["param"] == param
    assert said in error["message"]


def test_answers_to_drawn_schemas_are_valid(deployment: Deployment) -> None:
    """The short form of `make json-answers`: without kills."""

    def one(asked: tuple[Schema, dict[str, Any]]) -> tuple[Schema, httpx.Response]:
        schema, body = asked
        return schema, httpx.post(f"{deployment.url}/v1/chat/completions", json=body, timeout=60)

    found = Answers()
    with ThreadPoolExecutor(8) as pool:
        for schema, response in pool.map(one, requests("quire-tiny", 40, seed=3)):
            found.add(schema, response.status_code, response.json())
    assert found.problems == []
    assert (found.count, found.cut_off) == (40, 0)
    assert len(found.followed) > 20


@pytest.mark.timeout(600)
def test_a_tokenizer_does_not_try_what_another_has_tried(deployment: Deployment) -> None:
    """A busy machine's Redis may answer too late to share anything, so there are several attempts."""
    for attempt in range(8):
        deployment.replace("tokenizer_svc")  # one that does not leave Redis alone
        pattern = f"[a-c]{{{3 + attempt}}}"
        answered, refused = (ask(deployment, guided_regex=text) for text in (pattern, f"{pattern}("))
        deployment.replace("tokenizer_svc")
        assert texts(ask(deployment, guided_regex=pattern, seed=1))[0]
        again = ask(deployment, guided_regex=f"{pattern}(")
        assert (answered.status_code, again.status_code, again.json()) == (200, 400, refused.json())
        if not compiling(deployment):
            return
    raise AssertionError("each tokenizer has tried each grammar")


def compiling(deployment: Deployment) -> bool:
    """Whether a tokenizer that runs has started the process that tries grammars: it has tried one."""
    alive = [process.pid for process in deployment.processes["tokenizer_svc"] if process.poll() is None]
    assert len(alive) == 1
    children = psutil.Process(alive[0]).children()
    return any("tokenizer_svc.grammars.grammar_main" in child.cmdline() for child in children)


def test_a_grammar_that_goes_no_further_in_its_answer_is_a_400(deployment: Deployment) -> None:
    """Behind more text than a grammar is tried with are more words than a rule may have."""
    words = " | ".join(f'"w{number}"' for number in range(3000))
    fields = {"structured_outputs": {"grammar": f"start: BEGIN words\nBEGIN: /[ab]{{150}}/\nwords: {words}"}}
    refused = ask(deployment, **fields).json()["error"]
    assert (refused["type"], refused["param"]) == ("invalid_request_error", "structured_outputs")
    assert "3001 items" in refused["message"]
    streamed = ask(deployment, stream=True, **fields)
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: {")]
    assert len("".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])) >= 140
    assert events[-1]["error"] == refused
