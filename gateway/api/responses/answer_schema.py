"""What clients of OpenAI's Responses API get, for the OpenAPI document alone."""

from typing import Any, Literal

from pydantic import Field

from gateway.api.common.answers import AnswerPart
from gateway.api.openai.answer_schema import ChosenTokenLogprob
from gateway.http.openapi import ErrorDetail

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(AnswerPart):
    """A text."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any] = Field(max_length=0)
    logprobs: list[ChosenTokenLogprob]


class OutputMessage(AnswerPart):
    """What the model says."""

    id: str
    type: Literal["message"]
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class OutputReasoningText(AnswerPart):
    """A thought."""

    type: Literal["reasoning_text"]
    text: str


class OutputSummary(AnswerPart):
    """A thought as it stands in `content`."""

    type: Literal["summary_text"]
    text: str


class OutputReasoning(AnswerPart):
    """What the model thinks before it answers."""

    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[OutputSummary] = Field(max_length=1, description="Empty unless it was asked for.")
    content: list[OutputReasoningText]
    encrypted_content: str | None = Field(None, description="The thought, to be sent back, if asked for.")


class OutputCall(AnswerPart):
    """A call of an offered function."""

    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str = Field(description="What `function_call_output` names.")
    namespace: str | None = Field(None, description="Of a tool that is in one.")
    name: str
    arguments: str = Field(description="A JSON object.")


class OutputCustomCall(AnswerPart):
    """A call of an offered custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    status: Status
    call_id: str = Field(description="What `custom_tool_call_output` names.")
    namespace: str | None = Field(None, description="Of a tool that is in one.")
    name: str
    input: str


Output = OutputReasoning | OutputMessage | OutputCall | OutputCustomCall


class InputDetails(AnswerPart):
    """Which tokens of the prompt were not computed."""

    cached_tokens: int
    cache_write_tokens: Literal[0]


class OutputDetails(AnswerPart):
    """Which tokens of the answer are thoughts."""

    reasoning_tokens: int


class ResponseTokens(AnswerPart):
    """Tokens of a request."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(AnswerPart):
    """Why an answer is not complete."""

    reason: Literal["max_output_tokens"]


class ResponseFault(AnswerPart):
    """Why an answer has failed."""

    code: str
    message: str


class ConversationName(AnswerPart):
    """The conversation that the response belongs to."""

    id: str


class ResponseAnswer(AnswerPart):
    """The answer of POST /v1/responses."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix time, seconds.")
    completed_at: int | None = Field(description="Unix time, seconds.")
    status: Status | Literal["failed", "queued", "cancelled"]
    error: ResponseFault | None
    incomplete_details: Incomplete | None
    output: list[Output]
    usage: ResponseTokens | None
    background: bool
    conversation: ConversationName | None
    frequency_penalty: float
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None
    metadata: dict[str, str]
    model: str
    parallel_tool_calls: bool
    presence_penalty: float
    previous_response_id: str | None
    prompt_cache_key: None
    reasoning: dict[str, Any]
    safety_identifier: None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class InputTokens(AnswerPart):
    """The answer of POST /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(AnswerPart):
    """The answer of DELETE /v1/responses/{response_id}."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItems(AnswerPart):
    """The answer of GET /v1/responses/{response_id}/input_items."""

    object: Literal["list"]
    data: list[dict[str, Any]] = Field(description="Items as a request has them, with ids.")
    first_id: str | None
    last_id: str | None
    has_more: bool


class _Event(AnswerPart):
    sequence_number: int


class ResponseEvent(_Event):
    """The response as it is now."""

    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseAnswer


class ErrorEvent(_Event):
    """The conversation is too long. `response.failed` follows."""

    type: Literal["error"]
    error: ErrorDetail


class ItemEvent(_Event):
    """An item begins or has ended."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Output


class _ItemPart(_Event):
    item_id: str
    output_index: int


class PartEvent(_ItemPart):
    """Part of an item begins or has ended."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: Literal[0]
    part: OutputText | OutputReasoningText


class TextDeltaEvent(_ItemPart):
    """More text."""

    type: Literal["response.output_text.delta"]
    content_index: Literal[0]
    delta: str
    logprobs: list[ChosenTokenLogprob]


class TextDoneEvent(_ItemPart):
    """The whole text."""

    type: Literal["response.output_text.done"]
    content_index: Literal[0]
    text: str
    logprobs: list[ChosenTokenLogprob]


class ReasoningDeltaEvent(_ItemPart):
    """More of a thought."""

    type: Literal["response.reasoning_text.delta"]
    content_index: Literal[0]
    delta: str


class ReasoningDoneEvent(_ItemPart):
    """The whole thought."""

    type: Literal["response.reasoning_text.done"]
    content_index: Literal[0]
    text: str


class SummaryPartEvent(_ItemPart):
    """A summary begins or has ended."""

    type: Literal["response.reasoning_summary_part.added", "response.reasoning_summary_part.done"]
    summary_index: Literal[0]
    part: OutputSummary


class SummaryDeltaEvent(_ItemPart):
    """More of a summary."""

    type: Literal["response.reasoning_summary_text.delta"]
    summary_index: Literal[0]
    delta: str


class SummaryDoneEvent(_ItemPart):
    """The whole summary."""

    type: Literal["response.reasoning_summary_text.done"]
    summary_index: Literal[0]
    text: str


class ArgumentsDeltaEvent(_ItemPart):
    """A call's arguments, or its input, whole in one piece."""

    type: Literal["response.function_call_arguments.delta", "response.custom_tool_call_input.delta"]
    delta: str


class ArgumentsDoneEvent(_ItemPart):
    """A call's arguments."""

    type: Literal["response.function_call_arguments.done"]
    arguments: str


class InputDoneEvent(_ItemPart):
    """The input of a custom tool's call."""

    type: Literal["response.custom_tool_call_input.done"]
    input: str


RESPONSE_EVENTS: dict[str, type[AnswerPart]] = {
    "response.created": ResponseEvent,
    "response.queued": ResponseEvent,
    "response.in_progress": ResponseEvent,
    "response.output_item.added": ItemEvent,
    "response.content_part.added": PartEvent,
    "response.output_text.delta": TextDeltaEvent,
    "response.output_text.done": TextDoneEvent,
    "response.reasoning_text.delta": ReasoningDeltaEvent,
    "response.reasoning_text.done": ReasoningDoneEvent,
    "response.reasoning_summary_part.added": SummaryPartEvent,
    "response.reasoning_summary_text.delta": SummaryDeltaEvent,
    "response.reasoning_summary_text.done": SummaryDoneEvent,
    "response.reasoning_summary_part.done": SummaryPartEvent,
    "response.function_call_arguments.delta": ArgumentsDeltaEvent,
    "response.function_call_arguments.done": ArgumentsDoneEvent,
    "response.custom_tool_call_input.delta": ArgumentsDeltaEvent,
    "response.custom_tool_call_input.done": InputDoneEvent,
    "response.content_part.done": PartEvent,
    "response.output_item.done": ItemEvent,
    "response.completed": ResponseEvent,
    "response.incomplete": ResponseEvent,
    "error": ErrorEvent,
    "response.failed": ResponseEvent,
}
"""What a stream's events are, by their names."""

RESPONSES: tuple[type[AnswerPart], ...] = (
    ResponseAnswer,
    InputTokens,
    DeletedResponse,
    InputItems,
    *dict.fromkeys(RESPONSE_EVENTS.values()),
)
