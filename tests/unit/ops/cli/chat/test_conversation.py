"""What a conversation remembers of an answer that is stopped."""

import httpx
import pytest

from ops.cli.chat.conversation import Conversation
from ops.cli.chat.server import Server
from tests.support.scripted_gateway import DONE, ScriptedGateway, event


@pytest.mark.parametrize(("read", "kept"), [(2, ["Count", "One two "]), (1, [])])
def test_a_stopped_answer_is_kept_as_far_as_it_got(
    gateway: ScriptedGateway, read: int, kept: list[str]
) -> None:
    """One of which nothing has come is as if it had not been asked."""
    lines = [event(reasoning_content="Hm."), event("One two "), event("three"), DONE]
    gateway.answers = [[*lines]]
    with httpx.Client(base_url=gateway.url) as client:
        conversation = Conversation(Server(client), "quire-tiny")
        answer = conversation.say("Count")
        for _ in range(read):
            next(answer)
        answer.close()
    assert [each["content"] for each in conversation.messages] == kept
