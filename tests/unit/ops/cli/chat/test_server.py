"""What is read from a stream of events."""

import httpx

from ops.cli.chat.server import Delta, Server
from tests.support.scripted_gateway import DONE, ScriptedGateway, event


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
