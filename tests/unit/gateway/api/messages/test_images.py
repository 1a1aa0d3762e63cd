"""Images within texts: how each API's become text, and how they are taken out of it."""

import json
import time
from base64 import b64encode
from hashlib import sha256

import pytest
from pydantic_core import PydanticCustomError

from gateway.api.anthropic.schema import MessagesBody
from gateway.api.common.body import parse
from gateway.api.messages import images as module
from gateway.api.messages.images import (
    MAX_ADDRESS,
    as_text,
    from_base64,
    from_part,
    from_url,
    has_image,
    taken_out,
)
from gateway.api.messages.items import stored_items
from gateway.api.ollama.schema import OllamaChatBody, OllamaGenerateBody
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.openai.translate import chat_requests
from gateway.api.responses.conversations_schema import ItemsBody
from gateway.api.responses.schema import ResponsesBody
from gateway.errors import BadRequest
from gateway.http.body_memory import MAX_BODY_BYTES
from gateway.http.caller import Caller
from ops.runtime.image_store import MAX_IMAGE_BYTES, MAX_IMAGES
from proto.tokenizer_pb2 import ChatMessage, Conversation, TextRequest

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(50))
OTHERS = [b"\xff\xd8\xff\xe0 a photo", b"GIF87a", b"GIF89a...", b"RIFF\x10\0\0\0WEBPVP8 "]
DATA = b64encode(PNG).decode()
URL = f"data:image/png;base64,{DATA}"


def read(kind, **fields):
    return parse(json.dumps({"model": "m", **fields}).encode(), kind)


async def sent(body):
    """The messages that go to the tokenizer service, and the images that they name."""
    (request,) = chat_requests(body, "r", Caller())
    images = await taken_out([request])
    for message in request.chat.messages:
        for image in message.images:
            assert image.file.digest == sha256(images[image.file.name]).digest()
    return list(request.chat.messages), images


def places(message):
    return message.content, [image.offset for image in message.images]


async def taken(*texts):
    request = TextRequest(chat=Conversation(messages=[ChatMessage(role="user", content=t) for t in texts]))
    return await taken_out([request]), request.chat.messages


@pytest.mark.parametrize("image", [PNG, *OTHERS])
@pytest.mark.parametrize("spell", [lambda data: data, lambda data: data.rstrip("="), "{}\n ".format])
async def test_the_file_says_what_it_is(image, spell):
    data = spell(b64encode(image).decode())
    for text in (from_base64(data), from_url(f"data:text/plain;base64,{data}")):
        images, (message,) = await taken(text)
        assert list(images.values()) == [image]
        assert places(message) == ("", [0])


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://a/b c.png", "no white space"),
        ("https://a/\x02data:image;detail=auto;base64,\x03", "no white space"),
        ("https://a/" + "b" * MAX_ADDRESS, "characters"),
        ("file:///etc/passwd", "data: URL"),
        ("data:image/png;base64", "data: URL"),
        ("data:image/png,%89PNG", "with base64"),
        (f"data:image/png;base64,{DATA[:-4]}*{DATA[-4:]}", "not valid base64"),
        (f"data:image/png;base64,{DATA}A", "not valid base64"),
        ("data:image/png;base64,", "PNG, JPEG, WebP or GIF"),
        ("data:image/png;base64," + b64encode(b"<svg/>").decode(), "PNG, JPEG, WebP or GIF"),
        ("data:image/png;base64," + b64encode(b"RIFF\0\0\0\0WAVE").decode(), "PNG, JPEG, WebP or GIF"),
        (None, "a URL"),
        (["a"], "a URL"),
    ],
)
def test_what_is_no_image(url, said):
    with pytest.raises(PydanticCustomError, match=said):
        from_url(url)


def test_how_large_an_image_may_be():
    data = b64encode(PNG.ljust(MAX_IMAGE_BYTES)).decode()
    assert has_image(from_base64(data))
    with pytest.raises(PydanticCustomError, match="16 MiB"):
        from_base64(b64encode(PNG.ljust(MAX_IMAGE_BYTES + 1)).decode())


@pytest.mark.parametrize("detail", ["lowest", 3, ["low"]])
def test_details_that_there_are_not(detail):
    with pytest.raises(PydanticCustomError, match="detail"):
        from_part({"type": "image_url", "image_url": {"url": URL, "detail": detail}})


async def test_a_text_without_images_is_left_alone():
    texts = ["", "A fox \x02 data:image \x03", "❄" * 100]
    images, messages = await taken(*texts)
    assert images == {}
    assert [message.content for message in messages] == texts


async def test_places_are_counted_in_characters():
    images, (first, second) = await taken(f"❄𝄞{as_text(DATA)}b{as_text(DATA, 'low')}", as_text(DATA))
    assert places(first) == ("❄𝄞b", [2, 3])
    assert places(second) == ("", [0])
    assert [image.low_detail for image in first.images] == [False, True]
    assert len(images) == 3
    again, _ = await taken(as_text(DATA))
    assert not images.keys() & again.keys(), "another request's have other names"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (as_text(DATA)[:-1], "the beginning of an image"),
        (as_text(DATA, "some"), "the beginning of an image"),
        (as_text(DATA).replace(";base64", ""), "the beginning of an image"),
        (as_text("****"), "not valid base64"),
        (as_text("AAAA"), "PNG, JPEG, WebP or GIF"),
        (as_text(DATA) * (MAX_IMAGES + 1), f"at most {MAX_IMAGES} images"),
        (as_text(b64encode(PNG.ljust(MAX_IMAGE_BYTES)).decode()) * 2, f"{MAX_BODY_BYTES // 2**20} MiB"),
    ],
    ids=["no end", "detail", "no base64", "junk", "no image", "many", "large"],
)
async def test_what_a_client_may_have_written_itself(text, said):
    with pytest.raises(BadRequest, match=said) as refused:
        await taken("A", text)
    assert refused.value.param == "messages"


async def test_the_chat_api():
    image = {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}
    plain = {"type": "image_url", "image_url": URL}
    said = [{"type": "text", "text": "What is "}, image, {"type": "text", "text": "and"}, plain]
    roles = [{"role": role, "content": [plain]} for role in ("system", "assistant", "developer")]
    result = {"role": "tool", "content": [plain, {"type": "text", "text": "shown"}], "tool_call_id": "c"}
    messages, images = await sent(
        read(ChatBody, messages=[{"role": "user", "content": said}, *roles, result])
    )
    assert places(messages[0]) == ("What is and", [8, 11])
    assert [one.low_detail for one in messages[0].images] == [True, False]
    assert [places(message) for message in messages[1:]] == [("", [0])] * 3 + [("shown", [0])]
    assert set(images.values()) == {PNG}
    assert len(images) == 6


async def test_anthropics_api():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": DATA}}
    by_url = {"type": "image", "source": {"type": "url", "url": URL}, "cache_control": {"type": "ephemeral"}}
    call = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "It"}, image]}
    turns = [
        {"role": "user", "content": [image, {"type": "text", "text": "What?"}, by_url]},
        {"role": "user", "content": "Say."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    messages, images = await sent(read(MessagesBody, max_tokens=5, messages=turns).chat())
    assert [message.role for message in messages] == ["user", "user", "assistant", "tool"]
    assert places(messages[0]) == ("What?", [0, 5])
    assert places(messages[3]) == ("It", [2])
    assert len(images) == 3


async def test_the_responses_api():
    image = {"type": "input_image", "image_url": URL, "detail": "low"}
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": [image]}
    items = [{"role": "user", "content": [{"type": "input_text", "text": "A"}, image]}, call, result]
    asked = read(ResponsesBody, input=items)
    messages, images = await sent(asked.chat(asked.input, asked.offered(asked.input)))
    assert [places(message) for message in messages] == [("A", [1]), ("", []), ("", [0])]
    assert messages[2].images[0].low_detail
    assert len(images) == 2


def test_items_are_stored_with_their_images():
    image = {"type": "input_image", "image_url": URL}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "A"}, image]},
        {"type": "function_call_output", "call_id": "c", "output": [image, {"type": "text", "text": "B"}]},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "text", "text": "B"}]},
    ]
    asked = read(ItemsBody, items=items)
    message, seen, told = stored_items(asked.items, "r")
    assert message["content"] == [{"type": "input_text", "text": "A"}, image | {"detail": "auto"}]
    assert seen["output"] == [image | {"detail": "auto"}, {"type": "input_text", "text": "B"}]
    assert told["output"] == "B"
    again = read(ItemsBody, items=[message, seen, told])
    assert stored_items(again.items, "s") == [message, seen, told]


async def test_ollamas_api():
    said = [{"role": "user", "content": "What?", "images": [DATA, DATA]}, {"role": "user", "content": "B"}]
    messages, images = await sent(read(OllamaChatBody, messages=said).chat("m"))
    assert [places(message) for message in messages] == [("What?", [0, 0]), ("B", [])]
    assert len(images) == 2
    prompt = read(OllamaGenerateBody, system="S", prompt="What?", images=[DATA])
    messages, images = await sent(prompt.chat("m"))
    assert [places(message) for message in messages] == [("S", []), ("What?", [0])]
    assert len(images) == 1
    assert not read(OllamaGenerateBody, images=[DATA]).loads
    for none in (None, []):
        assert read(OllamaGenerateBody, images=none).loads


CHAT_IMAGE = {"type": "image_url", "image_url": URL}
USER = {"role": "user", "content": "A"}


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        (
            ChatBody,
            {"messages": [USER, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content",
        ),
        (
            ChatBody,
            {"messages": [USER], "prediction": {"type": "content", "content": [CHAT_IMAGE]}},
            "prediction.content",
        ),
        (
            ResponsesBody,
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_image", "image_url": URL, "file_id": "f"}]}
                ]
            },
            "input[0].content[0].file_id",
        ),
        (
            ResponsesBody,
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "ftp://a/b"}]}]},
            "input[0].content[0].image_url",
        ),
        (OllamaGenerateBody, {"prompt": "A", "images": [URL]}, "images[0]"),
        (OllamaGenerateBody, {"prompt": "A", "raw": True, "images": [DATA]}, "images"),
    ],
)
def test_what_is_refused(kind, fields, param):
    with pytest.raises(BadRequest) as refused:
        read(kind, **fields)
    assert refused.value.param == param


def test_beginnings_of_addresses_without_an_end_cost_little():
    """Were each read to the end, a megabyte of them would hold the gateway for minutes."""
    beginning = f"{module._BEGIN}auto{module._AT}"
    message = ChatMessage(content=beginning * 8000 + "http://h/a" + module._END)
    begun = time.process_time()
    assert module._addresses([message]) == ["http://h/a"]
    assert time.process_time() - begun < 5
