"""What the commands of a chat do."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ops.cli.chat.commands import COMMANDS, Leave, command
from ops.cli.chat.conversation import Conversation
from ops.cli.chat.errors import ChatError
from ops.cli.chat.server import Server
from tests.support.scripted_gateway import DONE, ScriptedGateway, event


@pytest.fixture
def conversation(gateway: ScriptedGateway) -> Iterator[Conversation]:
    with httpx.Client(base_url=gateway.url) as client:
        yield Conversation(Server(client), "quire-tiny")


def run(conversation: Conversation, text: str) -> str:
    """What the command notes, or the text of the answer that it asks for."""
    asked = command(text)
    assert asked is not None
    said = asked[0].run(conversation, asked[1])
    return said if isinstance(said, str) else "".join(delta.text for delta in said)


@pytest.mark.parametrize("text", ["hello", "/tmp/x", "/ new", "a /new", " /new", "/5 of it", ""])
def test_what_is_for_the_model(text: str) -> None:
    assert command(text) is None


def test_help_names_all(conversation: Conversation) -> None:
    said = run(conversation, "/help")
    assert [name for name in COMMANDS if f"/{name}" not in said] == []
    assert "Ctrl-C" in said
    with pytest.raises(ChatError, match="no command /fly"):
        command("/fly now")
    with pytest.raises(Leave):
        run(conversation, "/quit")


def test_what_is_set_goes_along(conversation: Conversation, gateway: ScriptedGateway) -> None:
    gateway.answers = [[event("A."), DONE], [event("B."), DONE]]
    assert run(conversation, "/system Be brief.\nVery.") == "system prompt: Be brief.\nVery."
    assert run(conversation, "/set temperature 0.5") == "temperature 0.5"
    assert run(conversation, '/set stop ["x"]') == 'temperature 0.5\nstop ["x"]'
    assert run(conversation, "/set user me") == 'temperature 0.5\nstop ["x"]\nuser "me"'
    list(conversation.say("Go"))
    for text in ("/system", "/set temperature", "/set stop", "/set user"):
        said = run(conversation, text)
    assert said == "all parameters are the server's defaults"
    list(conversation.say("On"))
    first, second = gateway.asked
    assert first["messages"][0] == {"role": "system", "content": "Be brief.\nVery."}
    assert (first["temperature"], first["stop"], first["user"]) == (0.5, ["x"], "me")
    assert [each["role"] for each in second["messages"]] == ["user", "assistant", "user"]
    assert not {"temperature", "stop", "user"} & second.keys()
    with pytest.raises(ChatError, match="messages cannot be set"):
        run(conversation, "/set messages []")


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_what_is_no_number_in_json_is_a_text(conversation: Conversation, value: str) -> None:
    assert run(conversation, f"/set temperature {value}") == f'temperature "{value}"'


def test_names_that_no_file_can_have(conversation: Conversation, tmp_path: Path) -> None:
    for name in ("~no-such-user-here/file", "a\0b"):
        with pytest.raises(ChatError, match="cannot write"):
            run(conversation, f"/save {name}")
        with pytest.raises(ChatError, match="cannot read"):
            run(conversation, f"/load {name}")
    conversation.system = "half \udce9"
    run(conversation, f"/save {tmp_path}/file")
    assert json.loads((tmp_path / "file").read_text())["messages"][0]["content"] == "half ?"


def test_models(conversation: Conversation) -> None:
    assert run(conversation, "/model") == "* quire-tiny\n  other"
    with pytest.raises(ChatError, match="no model fox; offered: quire-tiny, other"):
        run(conversation, "/model fox")
    assert run(conversation, "/model other") == "model: other"
    assert conversation.model == "other"


def test_another_answer_takes_the_place_of_the_first(
    conversation: Conversation, gateway: ScriptedGateway
) -> None:
    with pytest.raises(ChatError, match="no question"):
        run(conversation, "/retry")
    gateway.answers = [[event("A."), DONE], [event("B."), DONE], (500, {}), [event("C."), DONE]]
    list(conversation.say("Go"))
    assert run(conversation, "/retry") == "B."
    assert [each["content"] for each in conversation.messages] == ["Go", "B."]
    with pytest.raises(ChatError):
        list(conversation.say("On"))
    assert [each["content"] for each in conversation.messages] == ["Go", "B."]
    assert run(conversation, "/retry") == "C."
    assert [each["content"] for each in conversation.messages] == ["Go", "B.", "On", "C."]
    assert run(conversation, "/new") == "a new conversation"
    with pytest.raises(ChatError, match="no question"):
        run(conversation, "/retry")


def test_a_conversation_goes_on_from_a_file(
    conversation: Conversation, gateway: ScriptedGateway, tmp_path: Path
) -> None:
    gateway.answers = [[event("A."), DONE], [event("B."), DONE]]
    run(conversation, "/system Be brief.")
    run(conversation, "/set temperature 0.5")
    list(conversation.say("Gö"))
    file = tmp_path / "a file.json"
    assert run(conversation, f"/save {file}") == f"saved: {file}"
    assert json.loads(file.read_text()) == conversation.request(conversation.messages)
    with pytest.raises(ChatError, match="File exists"):
        run(conversation, f"/save {file}")
    again = Conversation(conversation.server, "other")
    assert run(again, f"/load {file}") == "2 messages"
    assert again.request(again.messages) == {**json.loads(file.read_text()), "model": "other"}
    assert run(again, "/retry") == "B."


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"messages": 1}', '{"messages": [1]}', '{"messages": [], "seed": NaN}']
)
def test_what_is_no_conversation_is_not_loaded(conversation: Conversation, tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(ChatError, match="not a conversation"):
        run(conversation, f"/load {tmp_path}/file")
    with pytest.raises(ChatError, match="cannot read"):
        run(conversation, f"/load {tmp_path}/none")
    with pytest.raises(ChatError, match="needs the name"):
        run(conversation, "/load")
