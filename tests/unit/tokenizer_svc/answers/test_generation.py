"""What the gateway is told of an answer before it begins."""

from dataclasses import replace

import pytest

from proto.scheduler_pb2 import GenerateResponse
from proto.tokenizer_pb2 import CallShape, ChatMessage, Conversation, Shape, TextRequest
from tokenizer_svc.answers.generation import Generation
from tokenizer_svc.formats.formats import Formats
from tokenizer_svc.model.tokenizer import TextModel


@pytest.mark.parametrize(
    ("shape", "demanded", "bare"),
    [
        (None, False, True),
        (Shape(calls=CallShape()), False, False),
        (Shape(json_schema="{}", or_calls=CallShape()), False, False),
        (Shape(calls=CallShape(required=True)), True, False),
    ],
)
def test_the_format_tells_of_calls_that_are_demanded_or_have_no_mark(
    byte_level: TextModel, shape: Shape | None, demanded: bool, bare: bool
) -> None:
    tools = '[{"type": "function", "function": {"name": "f"}}]'
    chat = Conversation(messages=[ChatMessage(role="user", content="hi")], tools=tools)
    request = TextRequest(chat=chat, shape=shape, n=1)
    formats = Formats(replace(byte_level, template="<tool_call>"))
    chunk, _ = Generation(byte_level, request, [1], formats).take(GenerateResponse())
    assert chunk is not None
    assert chunk.prompt.format.call_begin == ["<tool_call>"]
    assert chunk.prompt.format.call_demanded is demanded
    assert chunk.prompt.format.call_bare is bare


def test_the_format_tells_of_a_thought_that_the_answer_goes_on_with(byte_level: TextModel) -> None:
    said = ChatMessage(role="assistant", content="<think>Hm")
    chat = Conversation(messages=[said], continue_final_message=True)
    formats = Formats(replace(byte_level, template="</think>"))
    chunk, _ = Generation(byte_level, TextRequest(chat=chat, n=1), [1], formats).take(GenerateResponse())
    assert chunk is not None
    assert chunk.prompt.format.thinking
