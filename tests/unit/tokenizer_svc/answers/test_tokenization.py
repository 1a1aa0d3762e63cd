"""Prompts as tokens and back, between a client and the service."""

from typing import Any

import grpc
import pytest

from proto.tokenizer_pb2 import ChatMessage, Conversation, TextRequest, TokenIds, TokenizeRequest
from tokenizer_svc.answers.tokenization import FEW
from tokenizer_svc.model.tokenizer import TextModel

TEXT = "The quick brown fox — déjà vu, 東京 and 😀!"


@pytest.mark.parametrize("special", [True, False])
async def test_a_text(stub: Any, byte_level: TextModel, special: bool) -> None:
    request = TextRequest(text=TEXT, add_special_tokens=special)
    found = await stub.Tokenize(TokenizeRequest(request=request))
    assert list(found.token_ids) == byte_level.encode(TEXT, special)
    assert (found.text, list(found.names)) == ("", [])


async def test_a_conversation_is_what_an_answer_would_begin_with(
    stub: Any, byte_level: TextModel, encode_chat: Any
) -> None:
    chat = Conversation(messages=[ChatMessage(role="user", content=TEXT)])
    found = await stub.Tokenize(TokenizeRequest(request=TextRequest(chat=chat)))
    assert list(found.token_ids) == encode_chat(byte_level, [{"role": "user", "content": TEXT}])


async def test_names_are_the_vocabularys(stub: Any, byte_level: TextModel) -> None:
    found = await stub.Tokenize(TokenizeRequest(request=TextRequest(text=TEXT), names=True))
    assert list(found.names) == byte_level.tokenizer.encode(TEXT).tokens
    assert found.names[0] == "<s>"


@pytest.mark.parametrize("times", [1, FEW // 10])
@pytest.mark.parametrize(("skip", "text"), [(True, TEXT), (False, "<s>" + TEXT)])
async def test_tokens_as_text(stub: Any, byte_level: TextModel, times: int, skip: bool, text: str) -> None:
    tokens = byte_level.encode(TEXT, special=True) * times
    assert (len(tokens) > FEW) == (times > 1)
    request = TextRequest(tokens=TokenIds(ids=tokens), echo=True, skip_special_tokens=skip)
    found = await stub.Tokenize(TokenizeRequest(request=request))
    assert (list(found.token_ids), found.text) == (tokens, text * times)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (TextRequest(), "INVALID_ARGUMENT"),
        (TextRequest(tokens=TokenIds(ids=[10**6])), "INVALID_ARGUMENT"),
        (TextRequest(text="x" * 2_000_001), "OUT_OF_RANGE"),
    ],
)
async def test_what_is_refused(stub: Any, request_: TextRequest, code: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Tokenize(TokenizeRequest(request=request_))
    assert caught.value.code().name == code
    assert dict(caught.value.trailing_metadata())["quire-param"] == "prompt"
