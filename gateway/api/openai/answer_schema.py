"""What clients get of completions, chats and tokens, for the OpenAPI document alone."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.api.common.answers import AnswerPart


class CachedTokens(AnswerPart):
    """Which prompt tokens were not computed."""

    cached_tokens: int


class CompletionTokens(AnswerPart):
    """What the tokens of the answer are."""

    reasoning_tokens: int | None = Field(None, description="Thoughts, of models that think or call.")
    accepted_prediction_tokens: int | None = Field(None, description="With a `prediction`: those it spared.")
    rejected_prediction_tokens: int | None = Field(
        None, description="With a `prediction`: tokens of it that were tried in vain."
    )


class Usage(AnswerPart):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: CompletionTokens | None = None


class CompletionLogprobs(AnswerPart):
    """Log probabilities, a value for each token; null for the first token of an echoed prompt."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(AnswerPart):
    """A token that the prompt has, or that is likely in its place."""

    logprob: float
    rank: int = Field(description="1: the most likely token of the vocabulary.")
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""Of each token of a prompt but the first, by token id."""


StopReason = Annotated[
    str | int | None, Field(description="The stop string, or the token of `stop_token_ids`, that ended it.")
]


class CompletionChoice(AnswerPart):
    """One answer to one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: StopReason
    token_ids: list[int] = Field([], description="With `return_token_ids`.")
    prompt_token_ids: list[int] = Field([], description="With `return_token_ids`.")
    prompt_logprobs: PromptLogprobs = Field([], description="With `prompt_logprobs`.")


class Completion(AnswerPart):
    """The answer of POST /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Unix time, seconds.")
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class CompletionPiece(AnswerPart):
    """More of one answer to one prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None = Field(description="Not null in the last piece.")
    stop_reason: StopReason = None
    token_ids: list[int] = Field([], description="With `return_token_ids`.")
    prompt_token_ids: list[int] = Field([], description="With `return_token_ids`, in the first piece.")


class CompletionChunk(AnswerPart):
    """An event of POST /v1/completions with `stream`."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Unix time, seconds.")
    model: str
    choices: list[CompletionPiece]
    usage: Usage | None = Field(
        None,
        description="With `include_usage`; null in all events but the last, unless `continuous_usage_stats`.",
    )


class TokenLogprob(AnswerPart):
    """A token and its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class ChosenTokenLogprob(TokenLogprob):
    """A token of the answer, beside the most likely ones in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(AnswerPart):
    """Log probabilities of an answer's tokens."""

    content: list[ChosenTokenLogprob]
    refusal: None


class MadeFunction(AnswerPart):
    """A function and its arguments."""

    name: str
    arguments: str = Field(description="A JSON object.")


class MadeCall(AnswerPart):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: MadeFunction


class CustomInput(AnswerPart):
    """A custom tool and its input."""

    name: str
    input: str


class MadeCustomCall(AnswerPart):
    """A call of a custom tool that the model makes."""

    id: str
    type: Literal["custom"]
    custom: CustomInput


class AnswerMessage(AnswerPart):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = Field("", description="What the model thought before, if it spells that out.")
    reasoning: str = Field("", description="The same.")
    tool_calls: list[MadeCall | MadeCustomCall] = Field(
        [], description="Calls of the functions that were offered."
    )
    function_call: MadeFunction | None = Field(None, description="The call of one of the `functions`.")


class ChatChoice(AnswerPart):
    """One answer to a conversation."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    stop_reason: StopReason
    token_ids: list[int] = Field([], description="With `return_token_ids`.")


class ChatCompletion(AnswerPart):
    """The answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Unix time, seconds.")
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] = Field([], description="With `return_token_ids`.")
    prompt_logprobs: PromptLogprobs = Field([], description="With `prompt_logprobs`.")


class PieceOfCall(MadeCall):
    """A call that the model makes, whole in one piece."""

    index: int = Field(description="Of the call, among those of the answer.")


class PieceOfCustomCall(MadeCustomCall):
    """A call of a custom tool, whole in one piece."""

    index: int = Field(description="Of the call, among those of the answer.")


class MessageDelta(AnswerPart):
    """More of what the model says; empty in the last piece."""

    role: Literal["assistant"] | None = Field(None, description="In the first piece.")
    content: str = ""
    reasoning_content: str = Field("", description="What the model thinks before, if it spells that out.")
    reasoning: str = Field("", description="The same.")
    tool_calls: list[PieceOfCall | PieceOfCustomCall] = Field(
        [], description="Calls of the functions that were offered."
    )
    function_call: MadeFunction | None = Field(None, description="The call of one of the `functions`.")


class ChatPiece(AnswerPart):
    """More of one answer to a conversation."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None = Field(
        description="Not null in the last piece."
    )
    stop_reason: StopReason = None
    token_ids: list[int] = Field([], description="With `return_token_ids`.")


class ChatCompletionChunk(AnswerPart):
    """An event of POST /v1/chat/completions with `stream`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int = Field(description="Unix time, seconds.")
    model: str
    choices: list[ChatPiece]
    prompt_token_ids: list[int] = Field([], description="With `return_token_ids`, in the first event.")
    usage: Usage | None = Field(
        None,
        description="With `include_usage`; null in all events but the last, unless `continuous_usage_stats`.",
    )


class Tokens(AnswerPart):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int = Field(description="Tokens of prompt and answer together.")
    tokens: list[int]
    token_strs: list[str] | None = Field(description="With `return_token_strs`: as the vocabulary has them.")


class Detokenized(AnswerPart):
    """The answer of POST /detokenize."""

    prompt: str
    content: str = Field(description="The same text, as llama.cpp has it.")


ANSWERS = (
    Completion,
    CompletionChunk,
    ChatCompletion,
    ChatCompletionChunk,
    Tokens,
    Detokenized,
)
