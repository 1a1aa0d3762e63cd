"""What clients of Anthropic's API get, for the OpenAPI document alone."""

from typing import Any, Literal

from pydantic import Field

from gateway.api.common.answers import AnswerPart

StopReason = Literal["end_turn", "max_tokens", "model_context_window_exceeded", "stop_sequence", "tool_use"]


class TextBlock(AnswerPart):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(AnswerPart):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str = Field(description="Says nothing. In a stream it comes at the thought's end.")


class ToolUseBlock(AnswerPart):
    """A call of an offered function."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(AnswerPart):
    """Tokens of a request."""

    input_tokens: int = Field(description="Of the prompt, without those that the prefix cache had.")
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    output_tokens: int


class MessageAnswer(AnswerPart):
    """The answer of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class Count(AnswerPart):
    """The answer of POST /v1/messages/count_tokens."""

    input_tokens: int


class MessageStart(AnswerPart):
    """The first event: the message without content."""

    type: Literal["message_start"]
    message: MessageAnswer


class Ping(AnswerPart):
    """An event that says nothing."""

    type: Literal["ping"]


class BlockStart(AnswerPart):
    """A block begins."""

    type: Literal["content_block_start"]
    index: int
    content_block: TextBlock | ThinkingBlock | ToolUseBlock


class TextMore(AnswerPart):
    """More text."""

    type: Literal["text_delta"]
    text: str


class ThinkingMore(AnswerPart):
    """More of a thought."""

    type: Literal["thinking_delta"]
    thinking: str


class SignatureMore(AnswerPart):
    """The signature of a thought, which ends it."""

    type: Literal["signature_delta"]
    signature: str


class InputMore(AnswerPart):
    """More of a call's arguments, as JSON."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(AnswerPart):
    """More of a block."""

    type: Literal["content_block_delta"]
    index: int
    delta: TextMore | ThinkingMore | SignatureMore | InputMore


class BlockStop(AnswerPart):
    """A block has ended."""

    type: Literal["content_block_stop"]
    index: int


class Stopped(AnswerPart):
    """Why the answer has ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageEnd(AnswerPart):
    """The message has ended."""

    type: Literal["message_delta"]
    delta: Stopped
    usage: MessageUsage


class MessageStop(AnswerPart):
    """The last event."""

    type: Literal["message_stop"]


class AnthropicErrorDetails(AnswerPart):
    """What a client can read of an error."""

    error_code: Literal["thread_unsupported_request"]


class AnthropicErrorDetail(AnswerPart):
    """What went wrong."""

    type: str
    message: str
    details: AnthropicErrorDetails | None = Field(None, description="Of a refused `thread`.")


class AnthropicError(AnswerPart):
    """The body of every answer of Anthropic's API whose status is 400 or above."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


EVENTS: dict[str, type[AnswerPart]] = {
    "message_start": MessageStart,
    "ping": Ping,
    "content_block_start": BlockStart,
    "content_block_delta": BlockDelta,
    "content_block_stop": BlockStop,
    "message_delta": MessageEnd,
    "message_stop": MessageStop,
    "error": AnthropicError,
}
"""What a stream's events are, by their names."""

MESSAGES: tuple[type[AnswerPart], ...] = (MessageAnswer, Count, *EVENTS.values())
