"""What nobody knows is ignored, and the answer names it in a header that no name can spoil."""

import time

import httpx
import pytest

from gateway.api.common.ignored import MOST_LENGTH, MOST_NAMES, Ignored
from gateway.app import Options
from ops.runtime.metric_names import IGNORED
from ops.runtime.metrics import METRICS
from tests.unit.gateway.conftest import app_of

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]
GOOD = {"model": "m", "messages": MESSAGES}
NO_EFFECT = {
    "store": True,
    "service_tier": "flex",
    "verbosity": "low",
    "prediction": {"type": "content", "content": "A"},
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "moderation": {},
    "length_penalty": 1,
    "early_stopping": False,
    "reasoning_effort": "low",
    "max_tokens": 5.0,
    "stream_options": None,
    "suffix": None,
    "logits_processors": [],
    "spaces_between_special_tokens": False,
}


async def header_of(gateway, path=CHAT, **fields):
    answer = await gateway.http.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return answer.headers.get("x-quire-ignored")


async def test_what_is_known_is_not_named(gateway):
    assert await header_of(gateway, **GOOD, **NO_EFFECT) is None


async def test_what_is_unknown_is_named(gateway):
    turns = [{**MESSAGES[0], "id": "a", "colour": None}, {**MESSAGES[0], "id": "b", "when": 5}]
    parts = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    asked = {
        "model": "m",
        "messages": [*turns, {"role": "user", "content": parts}],
        "num_ctx": 5,
        "void": None,
    }
    assert await header_of(gateway, **asked) == "num_ctx, messages.id, messages.when"
    (request,) = gateway.tokenizer.requests
    assert [message.content for message in request.chat.messages] == ["Hi"] * 3
    asked = {"model": "m", "prompt": "A", "messages": MESSAGES, "temprature": 1}
    assert await header_of(gateway, COMPLETIONS, **asked) == "messages, temprature"


async def test_streams_and_errors_name_it_too(gateway):
    stream = {"stream": True, "stream_options": {"include_usage": True, "colour": 1}}
    assert await header_of(gateway, **GOOD, **stream) == "stream_options.colour"
    answer = await gateway.http.post(CHAT, json={**GOOD, "tempreature": 1, "temperature": 101})
    assert (answer.status_code, answer.headers["x-quire-ignored"]) == (400, "tempreature")


async def test_what_is_unknown_is_counted(gateway):
    def counts():
        return {name: METRICS.counter(IGNORED, name).value for name in ("num_ctx", "messages.hue", "model")}

    before = counts()
    turns = [{**MESSAGES[0], "hue": 1}, {**MESSAGES[0], "hue": 2}]
    for _ in range(2):
        await header_of(gateway, model="m", messages=turns, num_ctx=5)
    found = {name: value - before[name] for name, value in counts().items()}
    assert found == {"num_ctx": 2, "messages.hue": 2, "model": 0}, "once a request"


HOSTILE = [
    "a\r\nSet-Cookie: x=1",
    "a, b",
    "\x00\x7f\t",
    "é\u2028\U0001f98a",
    "x" * 10_000,
    "\U0001f98a" * 10_000,
    'a"b\\c',
    "%",
]


@pytest.mark.parametrize("name", HOSTILE)
async def test_no_name_poses_as_another_header(gateway, name):
    found = await header_of(gateway, **GOOD, **{name: 1})
    assert found
    assert found.isascii()
    assert found.isprintable()
    assert not set(found) & set(', "\\')
    assert len(found) <= MOST_LENGTH


def test_the_header_is_bounded():
    ignored = Ignored()
    assert not ignored
    for number in range(100_000):
        ignored.note(f"{number:>0100}\U0001f98a")
    assert len(ignored.header()) <= (MOST_NAMES + 1) * (MOST_LENGTH + 2)
    for name in map(chr, range(97, 97 + MOST_NAMES)):
        (few := Ignored()).note(name)
        few.note(name)
        assert few.header() == name


def test_more_names_than_there_is_room_for():
    ignored = Ignored()
    for number in range(MOST_NAMES):
        ignored.note(f"x{number}")
    ignored.note("x1")
    assert not ignored.header().endswith("...")
    ignored.note("y")
    assert ignored.header().endswith(f"x{MOST_NAMES - 1}, ...")


async def test_thousands_of_unknown_fields_cost_little(gateway):
    many = {f"x{number}": number for number in range(60_000)}
    begun = time.process_time()
    assert (await header_of(gateway, **GOOD, **many)).startswith("x0, x1, ")
    assert (await header_of(gateway, model="m", messages=[MESSAGES[0] | many])).startswith("messages.x0, ")
    assert time.process_time() - begun < 10


async def test_a_strict_gateway_refuses(backend):
    transport = httpx.ASGITransport(app_of(backend, options=Options(strict_fields=True)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for fields, param in (
            ({"temprature": 1}, "temprature"),
            ({"x" * 10_000: 1}, "x" * 100),
            ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
            ({"messages": [{**MESSAGES[0], "colour": 1}]}, "messages[0].colour"),
        ):
            answer = await http.post(CHAT, json=GOOD | fields)
            error = answer.json()["error"]
            assert (answer.status_code, error["param"], error["code"]) == (400, param, "unknown_parameter")
            assert len(answer.content) < 1000
        assert (await http.post(CHAT, json=GOOD | NO_EFFECT)).status_code == 200
