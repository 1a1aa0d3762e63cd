"""A text that cannot fit is refused before it is encoded."""

import json
from dataclasses import replace
from functools import partial

import pytest

from gateway.api.common.fields import MAX_STOP_CHARACTERS, MAX_STOP_LENGTH, MAX_STOPS
from proto.tokenizer_pb2 import ChatMessage, Conversation, EmbedRequest, TextRequest, TokenIds, ToolCall
from tokenizer_svc.errors import InvalidRequestError, TooLongError
from tokenizer_svc.requests.prompt import SHORT, check, input_tokens, prompt_tokens
from tokenizer_svc.templates.template import USUAL, Rendering

TEXT = "The fox. " * SHORT


async def text_tokens(*given):
    tokens, _ = await input_tokens(*given)
    return tokens


class Untouched:
    """A tokenizer that must not be asked."""

    def __getattr__(self, name):
        raise AssertionError("the text was encoded")


def context_of(tokens):
    async def context():
        return tokens

    return context


def requests(render):
    message = ChatMessage(role="user", content=TEXT)
    chat = Conversation(messages=[message])
    return {
        "text": (prompt_tokens, TextRequest(text=TEXT), "prompt"),
        "chat": (
            partial(prompt_tokens, render=render),
            TextRequest(chat=chat),
            "messages",
        ),
        "embedding": (text_tokens, EmbedRequest(text=TEXT), "prompt"),
    }


@pytest.mark.parametrize("kind", ["text", "chat", "embedding"])
async def test_too_long_for_the_context(byte_level, render, kind):
    encode, request, param = requests(render)[kind]
    context = context_of(len(TEXT) // byte_level.token_characters - 1)
    with pytest.raises(TooLongError, match=r" characters, .* maximum context length is ") as refused:
        await encode(replace(byte_level, tokenizer=Untouched()), request, context)
    assert refused.value.param == param


@pytest.mark.parametrize("kind", ["text", "chat", "embedding"])
@pytest.mark.parametrize("why", ["it may fit", "no context is known", "no bound is certain"])
async def test_it_is_encoded_otherwise(byte_level, render, kind, why):
    encode, request, _ = requests(render)[kind]
    tokens = {"it may fit": 2 * len(TEXT) // byte_level.token_characters, "no context is known": 0}
    model = replace(byte_level, token_characters=None) if "bound" in why else byte_level
    assert len(await encode(model, request, context_of(tokens.get(why, 1)))) > SHORT


async def test_what_is_short_asks_nobody(byte_level):
    async def context():
        raise AssertionError("the leases were read")

    for request in (TextRequest(text="A" * SHORT), TextRequest(tokens=TokenIds(ids=[1, 2]))):
        assert await prompt_tokens(byte_level, request, context)


async def test_tools_and_calls_are_what_templates_expect(byte_level):
    seen = []

    async def render(messages, arguments, tools, tenant, rendering):
        assert rendering is USUAL
        seen.append((messages, arguments, tools))
        assert tenant == "north"
        return "A"

    calls = [ToolCall(id="1", name="f", arguments='{"a": "é"}'), ToolCall(id="2", name="g", arguments="{oh")]
    messages = [
        ChatMessage(role="assistant", no_content=True, tool_calls=calls, reasoning="Hm."),
        ChatMessage(role="tool", content="5", tool_call_id="1"),
    ]
    chat = Conversation(messages=messages, tools='[{"type": "function"}]')
    await prompt_tokens(byte_level, TextRequest(chat=chat, tenant="north"), render=render)
    ((called, result), arguments, tools), = seen  # fmt: skip
    assert (arguments, tools) == ({}, [{"type": "function"}])
    assert called["content"] is None
    assert [call["function"] for call in called["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": "é"}'},
        {"name": "g", "arguments": "{oh"},
    ]
    assert called["reasoning_content"] == called["thinking"] == "Hm."
    assert result == {"role": "tool", "content": "5", "tool_call_id": "1"}


def test_as_many_stop_strings_as_the_gateway_takes(byte_level):
    for length in (MAX_STOP_CHARACTERS // MAX_STOPS, MAX_STOP_LENGTH):
        check(byte_level, TextRequest(n=1, stop=["x" * length] * (MAX_STOP_CHARACTERS // length)))


async def test_half_a_character_in_the_arguments_of_a_call(byte_level):
    async def render(messages, arguments, tools, tenant, rendering):
        return json.loads(messages[0]["tool_calls"][0]["function"]["arguments"])["a"]

    call = ToolCall(id="1", name="f", arguments=r'{"a": "b\ud83d"}')
    chat = Conversation(messages=[ChatMessage(role="assistant", tool_calls=[call])])
    tokens = await prompt_tokens(byte_level, TextRequest(chat=chat), render=render)
    assert tokens == byte_level.encode("b\ufffd", special=False)


@pytest.mark.parametrize(
    ("chat", "param"),
    [
        (Conversation(messages=[ChatMessage(role="user")], tools="{}"), "tools"),
        (Conversation(messages=[ChatMessage(role="user")], tools="[" * 100_000), "tools"),
        (
            Conversation(messages=[ChatMessage(tool_calls=[ToolCall(name="f", arguments="1" * 2_000_001)])]),
            "messages",
        ),
    ],
)
async def test_bad_tools(byte_level, render, chat, param):
    with pytest.raises(InvalidRequestError) as refused:
        await prompt_tokens(byte_level, TextRequest(chat=chat), render=render)
    assert refused.value.param == param


async def test_the_end_of_a_prompt(byte_level, render):
    """Of a text, of tokens and of a conversation; one longer than the context is cut to it."""

    async def context():
        return 16

    chat = Conversation(messages=[ChatMessage(role="user", content="Tell me more")])
    for request in (
        TextRequest(text="one two three " * 1000),
        TextRequest(tokens=TokenIds(ids=range(5, 90))),
        TextRequest(chat=chat),
    ):
        request.truncate_prompt_tokens = 0
        whole = await prompt_tokens(byte_level, request, render=render)
        request.truncate_prompt_tokens = 7
        assert await prompt_tokens(byte_level, request, context, render) == whole[-7:]
        request.truncate_prompt_tokens = len(whole) + 1
        assert await prompt_tokens(byte_level, request, render=render) == whole
        assert await prompt_tokens(byte_level, request, context, render) == whole[-15:]


async def test_special_tokens_are_added_as_asked(byte_level, render):
    chat = Conversation(messages=[ChatMessage(role="user", content="hi")])
    plain, rendered = "one two", "<s>[user] hi\n[assistant]"
    for request, text, usual in (
        (TextRequest(text=plain), plain, True),
        (TextRequest(chat=chat), rendered, False),
    ):
        assert await prompt_tokens(byte_level, request, render=render) == byte_level.encode(text, usual)
        for special in (True, False):
            request.add_special_tokens = special
            found = await prompt_tokens(byte_level, request, render=render)
            assert found == byte_level.encode(text, special)
    assert byte_level.encode(plain, True) != byte_level.encode(plain, False)


async def test_a_conversation_is_rendered_as_asked(byte_level):
    seen = []

    async def render(messages, arguments, tools, tenant, rendering):
        seen.append(rendering)
        return "A"

    for fields in (
        {"no_generation_prompt": True},
        {"continue_final_message": True, "documents": '[{"text": "x"}]', "template": "y"},
    ):
        chat = Conversation(messages=[ChatMessage(role="user", content="hi")], **fields)
        await prompt_tokens(byte_level, TextRequest(chat=chat), render=render)
    assert seen == [Rendering(False, documents=[]), Rendering(False, True, [{"text": "x"}], "y")]
    long = Conversation(messages=[ChatMessage(role="user", content="hi")], template="x" * 65_537)
    with pytest.raises(InvalidRequestError) as refused:
        await prompt_tokens(byte_level, TextRequest(chat=long), render=render)
    assert refused.value.param == "chat_template"
