"""System messages in the course of a conversation."""

import pytest

from gateway.api.messages.system_messages import in_place

CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]}
RESULT = {"role": "tool", "content": "snow", "tool_call_id": "c"}


def says(role, content):
    return {"role": role, "content": content}


def reminds(content):
    return says("user", f"<system-reminder>\n{content}\n</system-reminder>")


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ([], []),
        ([says("developer", "a")], [says("developer", "a")]),
        ([says("system", "a"), says("developer", "b"), says("user", "c")], None),
        ([says("user", "a"), says("user", "b"), says("assistant", "c"), CALL, RESULT], None),
        (
            [says("user", "a"), says("system", "b"), says("user", "c"), says("developer", "d")],
            [says("user", "a"), reminds("b"), says("user", "c"), reminds("d")],
        ),
        (
            [says("system", "a"), CALL, RESULT, says("system", "b")],
            [says("system", "a"), CALL, RESULT, reminds("b")],
        ),
    ],
)
def test_later_ones_are_the_users(messages, found):
    assert in_place(messages) == (messages if found is None else found)
