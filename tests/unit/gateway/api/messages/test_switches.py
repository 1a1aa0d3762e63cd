"""Switches for thoughts, in the forms of several servers."""

import json

import pytest

from gateway.api.common.body import parse
from gateway.api.common.ignored import Ignored
from gateway.api.openai.chat_schema import ChatBody
from gateway.errors import BadRequest
from tests.unit.gateway.api.messages.test_tools import MESSAGES, conversation

OFF = {"enable_thinking": False, "thinking": False}
ON = {"enable_thinking": True, "thinking": True}


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"thinking": {"type": "disabled"}}, OFF),
        ({"thinking": {"type": "enabled", "clear_thinking": False}}, ON),
        ({"thinking": "disabled"}, OFF),
        ({"thinking": "enabled"}, ON),
        ({"thinking": "auto", "enable_thinking": True}, ON),
        ({"enable_thinking": False}, OFF),
        ({"enable_thinking": True}, ON),
        ({"reasoning": {"enabled": False}}, OFF),
        ({"reasoning": {"effort": "high"}}, {"reasoning_effort": "high"}),
        ({"reasoning": {"effort": "none"}}, {"reasoning_effort": "none", **OFF}),
        ({"reasoning": {"effort": "high"}, "reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": None, "enabled": True}}, ON),
        ({"enable_thinking": True, "reasoning": {"enabled": False}}, OFF),
        ({"reasoning": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning": "none"}, {"reasoning_effort": "none", **OFF}),
        ({"reasoning": True}, ON),
        ({"thinking": {"type": "auto"}, "reasoning": False}, OFF),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"thinking": True}},
            OFF | {"thinking": True},
        ),
    ],
)
async def test_switches_for_thoughts_of_other_servers(gateway, fields, variables):
    assert json.loads((await conversation(gateway, **fields)).template_arguments) == variables


async def test_what_a_switch_says_besides_is_ignored_and_named(gateway):
    thinking = {"type": "enabled", "budget_tokens": 7}
    ask = {"model": "m", "messages": MESSAGES, "thinking": thinking}
    answer = await gateway.http.post("/v1/chat/completions", json=ask)
    assert answer.headers["x-quire-ignored"] == "thinking.budget_tokens"


@pytest.mark.parametrize(
    ("name", "switch"),
    [
        *(("thinking", switch) for switch in ("off", 0, {}, {"type": False}, {"budget_tokens": 7}, [])),
        *(("enable_thinking", switch) for switch in ("false", 1, {})),
        *(("reasoning", switch) for switch in (5, [], {"enabled": "no"}, {"effort": 1}, "x" * 65)),
    ],
)
def test_what_is_no_switch_is_ignored_and_named(name, switch):
    body, ignored = json.dumps({"model": "m", "messages": MESSAGES, name: switch}).encode(), Ignored()
    assert parse(body, ChatBody, ignored).variables == {}
    assert ignored.header() == name
    with pytest.raises(BadRequest) as refused:
        parse(body, ChatBody)
    assert refused.value.param.startswith(name)
