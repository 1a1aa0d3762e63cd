"""What tools give ends no conversation: a text stands for what cannot be read."""

import json
from base64 import b64encode

import jsonschema_rs
import pytest

from gateway.api.anthropic.schema import MessagesBody
from gateway.api.common.body import parse
from gateway.api.common.ignored import Ignored
from gateway.api.messages.images import UNSEEN, as_text
from gateway.api.messages.results import UNREAD
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.responses.schema import ResponsesBody
from gateway.errors import BadRequest

PNG = b64encode(b"\x89PNG\r\n\x1a\n and a picture").decode()
SVG = b64encode(b"<svg/>").decode()
URLS = ["ftp://a.b/c.png", f"data:image/svg+xml;base64,{SVG}", "data:image/png;base64,"]
GOOD = f"data:image/png;base64,{PNG}"


def chat(parts):
    result = {"role": "tool", "tool_call_id": "c", "content": parts}
    return ChatBody, {"messages": [{"role": "user", "content": "A"}, result]}


def messages(parts):
    result = {"type": "tool_result", "tool_use_id": "c", "content": parts}
    return MessagesBody, {"max_tokens": 5, "messages": [{"role": "user", "content": [result]}]}


def responses(parts):
    return ResponsesBody, {"input": [{"type": "function_call_output", "call_id": "c", "output": parts}]}


def of_messages(kind, **source):
    return messages, {"type": kind, "source": source}


def read(made, ignored=None):
    kind, fields = made
    return parse(json.dumps({"model": "m", **fields}).encode(), kind, ignored)


def said(body):
    """The result's text."""
    if isinstance(body, MessagesBody):
        body = body.chat()
    elif isinstance(body, ResponsesBody):
        body = body.chat(body.input, body.offered(body.input))
    return body.messages[-1].content


IMAGES = [
    *((chat, {"type": "image_url", "image_url": {"url": url}}) for url in URLS),
    (chat, {"type": "image_url", "image_url": URLS[0]}),
    (chat, {"type": "image_url"}),
    *((responses, {"type": "input_image", "image_url": url}) for url in URLS),
    (responses, {"type": "input_image", "file_id": "f"}),
    of_messages("image", type="url", url=URLS[0]),
    of_messages("image", type="base64", media_type="image/svg+xml", data=SVG),
    of_messages("image", type="base64", media_type="image/png", data=""),
    of_messages("image", type="file", file_id="f"),
    (messages, {"type": "image", "data": PNG, "mimeType": "image/png"}),
]
FILES = [
    (chat, {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}),
    (chat, {"type": "thinking", "thinking": "Hm."}),
    (chat, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    (responses, {"type": "input_file", "file_id": "f"}),
    (responses, {"type": "input_audio"}),
    of_messages("document", type="base64", media_type="application/pdf", data="AAAA"),
    of_messages("document", type="content", content=[{"type": "image"}]),
    (messages, {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}),
    (messages, {"type": "resource_link", "uri": "file:///a", "name": "a"}),
    (messages, {"type": "resource", "resource": {"uri": "file:///a", "text": "A"}}),
    (messages, {"text": "A"}),
]


@pytest.mark.parametrize(("of", "part"), [*IMAGES, *FILES])
def test_a_text_stands_for_what_cannot_be_read(of, part):
    around = [{"type": "text", "text": "It: "}, part, {"type": "text", "text": "."}]
    stands, name = (UNSEEN, "image") if (of, part) in IMAGES else (UNREAD, "file")
    ignored = Ignored()
    assert said(read(of(around), ignored)) == f"It: {stands}."
    assert ignored.header() == f"tool_result.{name}"
    with pytest.raises(BadRequest):
        read(of(around))


@pytest.mark.parametrize(
    ("of", "part"),
    [
        (chat, {"type": "image_url", "image_url": {"url": GOOD, "detail": "low"}}),
        (responses, {"type": "input_image", "image_url": GOOD, "detail": "low"}),
        of_messages("image", type="base64", media_type="image/png", data=PNG),
    ],
)
def test_an_image_stays_one(of, part):
    ignored = Ignored()
    found = [said(read(of([{"type": "text", "text": "It: "}, part]), context)) for context in (ignored, None)]
    assert found == [f"It: {as_text(PNG, 'auto' if of is messages else 'low')}"] * 2
    assert not ignored


@pytest.mark.parametrize("of", [chat, messages, responses])
def test_a_text_part_has_a_text(of):
    with pytest.raises(BadRequest):
        read(of([{"type": "text"}]), Ignored())


def test_what_a_user_sends_behind_results():
    image = {"type": "image", "source": {"type": "url", "url": URLS[0]}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": "A"}
    turn, ignored = {"role": "user", "content": [result, image]}, Ignored()
    body = read((MessagesBody, {"max_tokens": 5, "messages": [turn]}), ignored)
    assert (said(body), ignored.header()) == (UNSEEN, "tool_result.image")
    with pytest.raises(BadRequest):
        read((MessagesBody, {"max_tokens": 5, "messages": [turn | {"content": [image]}]}), Ignored())


@pytest.mark.parametrize("role", ["user", "assistant", "system"])
def test_of_others_it_is_refused(role):
    turn = {"role": role, "content": [{"type": "image_url", "image_url": URLS[0]}]}
    with pytest.raises(BadRequest):
        read((ChatBody, {"messages": [turn]}), Ignored())


@pytest.mark.parametrize("make", [messages, responses])
@pytest.mark.parametrize(
    ("part", "taken"),
    [
        ({"type": "document", "source": {"type": "base64"}}, True),
        ({"type": "sound", "data": "x"}, True),
        ({"data": "x"}, True),
        ({"type": "text"}, False),
        ("A", False),
    ],
)
def test_what_is_taken_is_documented(make, part, taken):
    kind, fields = make([part])
    assert jsonschema_rs.validator_for(kind.model_json_schema()).is_valid(fields) == taken
    try:
        parse(json.dumps(fields).encode(), kind, Ignored())
        assert taken
    except BadRequest:
        assert not taken


def test_a_file_behind_a_result_is_documented():
    kind, fields = messages("A")
    fields["messages"][0]["content"].append({"type": "document", "source": {"type": "file"}})
    assert jsonschema_rs.validator_for(kind.model_json_schema()).is_valid(fields)
    parse(json.dumps(fields).encode(), kind, Ignored())


TEXT = f"data:text/markdown;base64,{b64encode('❄ fox'.encode()).decode()}"
BROKEN = f"{TEXT[:-5]}\r\n{TEXT[-5:]}\n"
UNREADABLE = [
    (ChatBody, {"type": "image_url", "image_url": URLS[0]}),
    (ChatBody, {"type": "file", "file": {"file_data": "data:application/pdf;base64,AAAA"}}),
    (ChatBody, {"type": "file", "file": {"file_data": TEXT[:-3]}}),
    (ChatBody, {"type": "file", "file": {"file_data": "data:text/plain;base64,/w=="}}),
    (ChatBody, {"type": "file", "file": {"file_id": "f"}}),
    (ChatBody, {"type": "input_file", "file_url": "https://a.b/c"}),
    (ChatBody, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    (ResponsesBody, {"type": "input_image", "image_url": URLS[0]}),
    (ResponsesBody, {"type": "input_file", "file_id": "f"}),
    (ResponsesBody, {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA"}),
    (ResponsesBody, {"type": "sound"}),
    (MessagesBody, {"type": "document", "source": {"type": "base64", "data": "AAAA"}}),
    (MessagesBody, {"type": "image", "source": {"type": "url", "url": URLS[0]}}),
    (MessagesBody, {"type": "container_upload", "file_id": "f"}),
]


def conversation(kind, *contents):
    """A question of the user's for each content, with answers between."""
    turns = [{"role": "user", "content": content} for content in contents]
    answered = [each for turn in turns for each in (turn, {"role": "assistant", "content": "Yes."})][:-1]
    fields = {"input" if kind is ResponsesBody else "messages": answered}
    return kind, fields | ({"max_tokens": 5} if kind is MessagesBody else {})


def questions(body):
    """What the user says."""
    if isinstance(body, MessagesBody):
        body = body.chat()
    elif isinstance(body, ResponsesBody):
        body = body.chat(body.input, body.offered(body.input))
    return [one.content for one in body.messages if one.role == "user"]


@pytest.mark.parametrize(("kind", "part"), UNREADABLE)
def test_a_user_may_go_on_after_a_file_that_was_refused(kind, part):
    around, ignored = [{"type": "text", "text": "It: "}, part], Ignored()
    image = "image" in part["type"]
    made = conversation(kind, around, "And now?")
    assert questions(read(made, ignored)) == [f"It: {UNSEEN if image else UNREAD}", "And now?"]
    place = "input" if kind is ResponsesBody else "messages"
    assert ignored.header() == f"{place}.{'image' if image else 'file'}"
    assert jsonschema_rs.validator_for(kind.model_json_schema()).is_valid(made[1])
    for strict, contents in ((None, (around, "And now?")), (Ignored(), ("A", around))):
        with pytest.raises(BadRequest):
            read(conversation(kind, *contents), strict)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        (ChatBody, {"type": "file", "file": {"filename": "a.md", "file_data": TEXT}}),
        (ChatBody, {"type": "input_file", "filename": "a.md", "file_data": TEXT}),
        (ResponsesBody, {"type": "input_file", "filename": "a.md", "file_data": TEXT}),
        (ResponsesBody, {"type": "input_file", "filename": "a.md", "file_data": TEXT.rstrip("=")}),
        (
            ChatBody,
            {"type": "file", "file": {"filename": "a.md", "file_data": BROKEN}},
        ),
    ],
)
def test_a_file_that_is_a_text_is_read(kind, part):
    made = conversation(kind, [part], [part, {"type": "text", "text": "What is it?"}])
    ignored = Ignored()
    for context in (ignored, None):
        first, last = questions(read(made, context))
        assert (first, last) == ("a.md\n\n❄ fox\n\n", "a.md\n\n❄ fox\n\nWhat is it?")
    assert not ignored
    assert jsonschema_rs.validator_for(kind.model_json_schema()).is_valid(made[1])
    of = chat if kind is ChatBody else responses
    assert said(read(of([part]), ignored)) == first, "of a tool, too"


@pytest.mark.parametrize("thought", ["Hm.", [{"type": "text", "text": "H"}, {"type": "text", "text": "m."}]])
def test_thoughts_among_the_parts_of_an_answer(thought):
    """As Mistral's models, and clients of Anthropic's, have them."""
    parts = [{"type": "thinking", "thinking": thought, "signature": "s"}, {"type": "text", "text": "Nine."}]
    turns = [{"role": role, "content": parts} for role in ("assistant", "user")]
    turns[1]["content"] = "Why?"
    for context in (Ignored(), None):
        answer = read((ChatBody, {"messages": turns}), context).messages[0]
        assert (answer.content, answer.reasoning_content) == ("Nine.", "Hm.")
    turns[0]["reasoning_content"] = "It was nine."
    assert read((ChatBody, {"messages": turns})).messages[0].reasoning_content == "It was nine."
    assert jsonschema_rs.validator_for(ChatBody.model_json_schema()).is_valid({"messages": turns})
    with pytest.raises(BadRequest):
        read((ChatBody, {"messages": [{"role": "user", "content": parts}]}))
