"""Checks a request and turns its prompt into tokens."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from proto.tokenizer_pb2 import ChatMessage, Conversation, EmbedRequest, TextRequest
from tokenizer_svc.errors import InvalidRequestError, TooLongError
from tokenizer_svc.tokenizer import TextModel

MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256
"""Characters of one stop string."""
MAX_STOP_TOKENS = 256
MAX_PROMPT_LENGTH = 2_000_000
"""Characters of a prompt: a bound on the work before its tokens can be counted."""
MAX_PROMPT_TOKENS = 500_000
"""Half of what a message to the scheduler can carry (4 MiB); the model's own bound is the scheduler's."""
MAX_MESSAGES = 4096
SHORT = 8_000
"""Characters that are encoded at once (about 2 ms). A longer text is encoded in a thread: streams go on."""


async def prompt_tokens(model: TextModel, request: TextRequest) -> list[int]:
    """The tokens of the request's prompt, at least one. Raises `InvalidRequestError`."""
    match request.WhichOneof("prompt"):
        case "tokens":
            return _given(request.tokens.ids, model.vocab_size)
        case "text":
            tokens = await _encode_text(model, request.text)
            param = "prompt"
        case "chat":
            tokens = await _encode_chat(model, request.chat)
            param = "messages"
        case _:
            raise InvalidRequestError("prompt", "there is no prompt")
    _check_count(param, len(tokens))
    return tokens


async def input_tokens(model: TextModel, request: EmbedRequest) -> list[int]:
    """The tokens of a text to be embedded, at least one. Raises `InvalidRequestError`."""
    match request.WhichOneof("input"):
        case "tokens":
            return _given(request.tokens.ids, model.vocab_size)
        case "text":
            tokens = await _encode_text(model, request.text)
            _check_count("prompt", len(tokens))
            return tokens
        case _:
            raise InvalidRequestError("prompt", "there is no text")


def check(model: TextModel, request: TextRequest) -> None:
    """Check everything but the prompt. Raises `InvalidRequestError`."""
    if request.n < 1:
        raise InvalidRequestError("n", "n must be at least 1")
    if request.HasField("max_tokens") and request.max_tokens < 1:
        raise InvalidRequestError("max_tokens", "max_tokens must be at least 1")
    if len(request.stop) > MAX_STOP_STRINGS:
        raise InvalidRequestError("stop", f"at most {MAX_STOP_STRINGS} stop strings, not {len(request.stop)}")
    if not all(0 < len(string) <= MAX_STOP_LENGTH for string in request.stop):
        raise InvalidRequestError("stop", f"a stop string has 1 to {MAX_STOP_LENGTH} characters")
    if len(request.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidRequestError("stop_token_ids", f"at most {MAX_STOP_TOKENS} stop tokens")
    _check_ids("stop_token_ids", request.stop_token_ids, model.vocab_size)
    indices = [sequence.index for sequence in request.resumed]
    if len(set(indices)) < len(indices) or any(index >= request.n for index in indices):
        raise InvalidRequestError("resumed", f"sequences {indices} are not distinct ones of {request.n}")
    for sequence in request.resumed:
        _check_ids("resumed", sequence.token_ids, model.vocab_size)


def _given(ids: Sequence[int], vocab_size: int) -> list[int]:
    _check_count("prompt", len(ids))
    _check_ids("prompt", ids, vocab_size)
    return list(ids)


async def _encode_text(model: TextModel, text: str) -> list[int]:
    _check_length("prompt", len(text))
    if len(text) <= SHORT:
        return model.encode(text, special=True)
    return await asyncio.to_thread(model.encode, text, special=True)


async def _encode_chat(model: TextModel, chat: Conversation) -> list[int]:
    if not 0 < len(chat.messages) <= MAX_MESSAGES:
        raise InvalidRequestError("messages", f"a conversation has 1 to {MAX_MESSAGES} messages")
    messages = [_message(message) for message in chat.messages]
    length = sum(len(part) for message in messages for part in message.values())
    _check_length("messages", length)
    arguments = _arguments(chat.template_arguments)
    if length <= SHORT:
        return model.encode_chat(messages, arguments)
    return await asyncio.to_thread(model.encode_chat, messages, arguments)


def _message(message: ChatMessage) -> dict[str, str]:
    """A message as chat templates take it: without a name if it has none."""
    fields = {"role": message.role, "content": message.content}
    return fields | {"name": message.name} if message.name else fields


def _arguments(text: str) -> dict[str, Any]:
    """The chat template's variables beside the conversation. Raises `InvalidRequestError`."""
    _check_length("chat_template_kwargs", len(text))
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError("chat_template_kwargs", f"this is not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise InvalidRequestError("chat_template_kwargs", "this is not a JSON object")
    return arguments


def _check_length(param: str, length: int) -> None:
    if length > MAX_PROMPT_LENGTH:
        raise TooLongError(param, f"the prompt is too long: more than {MAX_PROMPT_LENGTH} characters")


def _check_count(param: str, tokens: int) -> None:
    if tokens == 0:
        raise InvalidRequestError(param, "the prompt is empty: it has no tokens")
    if tokens > MAX_PROMPT_TOKENS:
        raise TooLongError(param, f"the prompt is too long: more than {MAX_PROMPT_TOKENS} tokens")


def _check_ids(param: str, ids: Sequence[int], vocab_size: int) -> None:
    if ids and max(ids) >= vocab_size:
        raise InvalidRequestError(
            param, f"token id {max(ids)} is not below {vocab_size}, the model's vocabulary"
        )
