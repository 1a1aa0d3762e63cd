"""Conversations as chat templates take them."""

import pytest

from gateway.api.turns import in_turns

CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
RESULT = {"role": "tool", "content": "snow", "tool_call_id": "c"}


def says(role, content):
    return {"role": role, "content": content}


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([], []),
        ([says("developer", "a")], [says("system", "a")]),
        (
            [says("system", "a"), says("developer", "b"), says("user", "c")],
            [says("system", "a\n\nb"), says("user", "c")],
        ),
        (
            [says("user", "a"), says("system", "b"), says("user", "c"), says("assistant", "d")],
            [says("user", "a\n\n<system-reminder>\nb\n</system-reminder>\n\nc"), says("assistant", "d")],
        ),
        (
            [says("user", "a"), CALL, RESULT, RESULT, says("developer", "b")],
            [
                says("user", "a"),
                CALL,
                RESULT,
                RESULT,
                says("user", "<system-reminder>\nb\n</system-reminder>"),
            ],
        ),
        ([says("user", ""), says("user", "a"), says("user", "")], [says("user", "a")]),
        ([says("assistant", "a"), CALL], [says("assistant", "a"), CALL]),
    ],
)
def test_turns(messages, found):
    assert in_turns(messages) == found
