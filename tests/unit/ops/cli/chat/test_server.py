"""What is read from a stream of events."""

import httpx
import pytest

from ops.cli.chat.server import Delta, Server
from ops.runtime.api_keys import authorization
from ops.runtime.errors import LaunchError
from tests.support.scripted_gateway import DONE, ScriptedGateway, event


def test_half_a_character_is_sent_and_a_key_that_no_header_can_have_is_not(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.answers = [[event("A."), DONE]]
    with httpx.Client(base_url=gateway.url) as client:
        list(Server(client).answer({"model": "m", "messages": ["caf\udce9"]}))
    assert gateway.asked[0]["messages"] == ["caf\udce9"]
    monkeypatch.setenv("OPENAI_API_KEY", " key\n")
    assert authorization() == {"Authorization": "Bearer key"}
    for wrong in ("schlüssel", "a\nb"):
        monkeypatch.setenv("OPENAI_API_KEY", wrong)
        with pytest.raises(LaunchError, match="is no API key") as refused:
            authorization()
        assert wrong not in f"{refused.value}"


def test_events_become_deltas(gateway: ScriptedGateway) -> None:
    named = [{"index": 0, "id": "1", "function": {"name": "look", "arguments": ""}}]
    more = [{"index": 0, "function": {"arguments": '{"at": 1}'}}]
    gateway.answers = [
        [
            event("", reasoning_content="Hm.", reasoning="Hm."),
            event(content=None),
            event(tool_calls=named),
            event(tool_calls=more),
            'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}',
            'data: {"choices": [], "usage": {"completion_tokens": 7}}',
            DONE,
        ]
    ]
    with httpx.Client(base_url=gateway.url) as client:
        deltas = list(Server(client).answer({"model": "m", "messages": []}))
    assert deltas == [
        Delta(thought="Hm."),
        Delta(),
        Delta(tool="\nlook "),
        Delta(tool='{"at": 1}'),
        Delta(finish="length"),
        Delta(tokens=7),
    ]
    assert gateway.asked[0]["stream_options"] == {"include_usage": True}
