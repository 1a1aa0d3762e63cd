"""Anthropic's Messages API: its request bodies, and what they are as requests of the chat API."""

import json
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from gateway.api.body import validated
from gateway.api.chat_schema import ChatBody, FittedChatBody
from gateway.api.fields import MAX_INT32, MAX_MESSAGES, MAX_STOP_LENGTH, MAX_STOPS, bounded, declared
from gateway.api.request_schema import RequestBody
from gateway.api.shape import MAX_DEPTH
from gateway.api.tools import MAX_CALLS, MAX_NAME, MAX_TOOL_VALUES, MAX_TOOLS, functions
from gateway.api.turns import in_turns
from gateway.api.volatile import Volatile, put_last, without_volatile
from gateway.errors import BadRequest

MAX_USER = 256
"""Characters of a user's name."""
MAX_BLOCKS = 2 * MAX_CALLS
"""Parts of one message."""
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""What chat templates know, by Anthropic's levels of effort."""

Json = dict[str, Any]


class _Part(BaseModel):
    """Part of a request. Other fields are hints for caches and the like."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class TextPart(_Part):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingPart(_Part):
    """What the model thought before."""

    type: Literal["thinking"]
    thinking: str


class HiddenPart(_Part):
    """A thought that cannot be read, or a note about tools and servers. It is left out: the model sees all
    tools from the beginning."""

    type: Literal["redacted_thinking", "tool_addition", "tool_removal", "fallback"]


class ToolUsePart(_Part):
    """A call that the model has made."""

    type: Literal["tool_use"]
    id: str = Field(max_length=MAX_NAME)
    name: str = Field(min_length=1, max_length=MAX_NAME)
    input: Json = Field(default_factory=dict)


def _texts(value: object) -> object:
    """A text, or the texts of a list of text parts, joined."""
    return "".join(_parted(value)) if isinstance(value, list) else value


def _parted(value: list[Any]) -> list[str]:
    """The texts of a list of text parts."""
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("text"), str):
            raise PydanticCustomError("unsupported_value", "Only parts of type 'text' are supported")
        if part.get("type") != "text":
            raise PydanticCustomError("unsupported_value", "Only parts of type 'text' are supported")
    return [part["text"] for part in value]


_TEXT_PARTS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
        "required": ["type", "text"],
    },
}
_TEXTS = WithJsonSchema({"anyOf": [{"type": "string"}, _TEXT_PARTS]})
Texts = Annotated[str, BeforeValidator(_texts), _TEXTS]


def _each(value: object) -> object:
    """The texts of a list of text parts, or the one text, as a list."""
    if isinstance(value, str):
        return [value]
    return _parted(value) if isinstance(value, list) else value


class PlainSource(_Part):
    """A document's text."""

    type: Literal["text"]
    text: str = Field(alias="data")


class PartsSource(_Part):
    """A document's text, in parts."""

    type: Literal["content"]
    text: Texts = Field(alias="content")


class DocumentPart(_Part):
    """A text to draw on."""

    type: Literal["document"]
    source: Annotated[PlainSource | PartsSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None

    @property
    def text(self) -> str:
        return _paragraphs(self.title, self.context, self.source.text)


class SearchResultPart(_Part):
    """A text that a search has found, and where."""

    type: Literal["search_result"]
    source: str
    title: str
    content: Texts

    @property
    def text(self) -> str:
        return _paragraphs(self.title, self.source, self.content)


class ReferencePart(_Part):
    """A tool that a search for tools has found."""

    type: Literal["tool_reference"]
    tool_name: str = Field(max_length=MAX_NAME)

    @property
    def text(self) -> str:
        return f"{self.tool_name}\n"


def _paragraphs(*texts: str | None) -> str:
    return "".join(f"{text}\n\n" for text in texts if text)


_Readable = TextPart | DocumentPart | SearchResultPart


def _known(value: object, kinds: tuple[str, ...]) -> object:
    """Parts, whose types are among `kinds`; a text is one part."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    for part in value if isinstance(value, list) else ():
        if isinstance(part, dict) and part.get("type") not in kinds:
            message = f"Only parts of types {', '.join(kinds)} are supported"
            raise PydanticCustomError("unsupported_value", message)
    return value


_READABLE = ("text", "document", "search_result")
_ResultPart = Annotated[_Readable | ReferencePart, Field(discriminator="type")]


def _result(value: object) -> object:
    """Parts of a result. Null is none."""
    return [] if value is None else _known(value, (*_READABLE, "tool_reference"))


class ToolResultPart(_Part):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: str = Field(max_length=MAX_NAME)
    content: Annotated[
        list[_ResultPart],
        Field(max_length=MAX_BLOCKS),
        BeforeValidator(_result, json_schema_input_type=str | list[_ResultPart] | None),
    ] = Field(default_factory=list)
    is_error: bool | None = None

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


_PARTS = (
    *(*_READABLE, "thinking", "tool_use", "tool_result"),
    *("redacted_thinking", "tool_addition", "tool_removal", "fallback"),
)
Part = Annotated[
    _Readable | ThinkingPart | HiddenPart | ToolUsePart | ToolResultPart, Field(discriminator="type")
]


class Turn(_Part):
    """One message: a text, or parts."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[Part],
        Field(max_length=MAX_BLOCKS),
        BeforeValidator(partial(_known, kinds=_PARTS), json_schema_input_type=str | list[Part]),
    ]

    def messages(self) -> list[Json]:
        """This turn as messages of the chat API: results of calls are messages of their own there."""
        found: list[Json] = []
        texts: list[str] = []
        thoughts, calls = "", []
        for part in self.content:
            match part:
                case TextPart() | DocumentPart() | SearchResultPart():
                    texts.append(part.text)
                case ThinkingPart():
                    thoughts += part.thinking
                case ToolUsePart():
                    function = {"name": part.name, "arguments": json.dumps(part.input, ensure_ascii=False)}
                    calls.append({"id": part.id, "type": "function", "function": function})
                case ToolResultPart():
                    if texts:
                        found.append({"role": self.role, "content": "".join(texts)})
                        texts = []
                    found.append({"role": "tool", "content": part.text, "tool_call_id": part.tool_use_id})
        if texts or thoughts or calls or not found:
            last: Json = {"role": self.role, "content": "".join(texts)}
            if calls:
                last |= {"content": "".join(texts) or None, "tool_calls": calls}
            found.append(last | ({"reasoning_content": thoughts} if thoughts else {}))
        return found


def _tools(value: object, info: ValidationInfo) -> object:
    return functions(value, info, ("custom", None))


class Tool(_Part):
    """A function that the model may call."""

    name: str = Field(min_length=1, max_length=MAX_NAME)
    description: str | None = None
    input_schema: Json
    strict: bool | None = None
    type: Literal["custom"] | None = None

    def function(self) -> Json:
        """As the chat API has it."""
        function: Json = {"name": self.name, "parameters": self.input_schema}
        if self.description is not None:
            function["description"] = self.description
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class Choice(_Part):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = Field("", max_length=MAX_NAME, description="Of type `tool`: its name.")
    disable_parallel_tool_use: bool | None = None


class Thinking(_Part):
    """Whether the model thinks before it answers, if its chat template has a switch for it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1, le=MAX_INT32, description="Tokens of the thought at most.")


class Format(_Part):
    """A JSON Schema that the answer follows."""

    type: Literal["json_schema"]
    json_schema: Json = Field(alias="schema")


class OutputConfig(_Part):
    """What the answer is like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


class Metadata(_Part):
    """Who asks."""

    user_id: str | None = None


class CountBody(RequestBody):
    """POST /v1/messages/count_tokens."""

    ignored: ClassVar[frozenset[str]] = (RequestBody.ignored - {"metadata"}) | {
        *("cache_control", "context_management", "diagnostics", "inference_geo", "speed"),
    }
    neutral: ClassVar[dict[str, tuple[object, ...]]] = {"mcp_servers": ([],), "container": ()}
    mixed: ClassVar[frozenset[str]] = frozenset(("content",))

    messages: list[Turn] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: Annotated[list[str], BeforeValidator(_each), _TEXTS] = Field(
        default_factory=list, description="Comes before the conversation."
    )
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS), BeforeValidator(_tools)] = Field(
        default_factory=list,
        description="Functions that the model may call. Tools of other types are ignored.",
    )
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = Field(None, description="An earlier place of `output_config.format`.")

    @model_validator(mode="after")
    def _a_tool_has_a_name(self) -> "CountBody":
        if self.tool_choice is not None and (self.tool_choice.type == "tool") != bool(self.tool_choice.name):
            message = "'tool_choice': a name goes with the type 'tool', and with no other."
            raise BadRequest(message, param="tool_choice", code="invalid_value")
        return self

    def chat(self, volatile: Volatile = "omit") -> ChatBody:
        """The same request of the chat API. `volatile`: what becomes of the line that each request has anew.

        Raises `BadRequest`.
        """
        return validated(self._chat_fields(volatile), FittedChatBody)

    def _chat_fields(self, volatile: Volatile) -> Json:
        text, line = without_volatile(self.system)
        system = [{"role": "system", "content": text}] if text else []
        turns = in_turns([*system, *(message for turn in self.messages for message in turn.messages())])
        if volatile == "last":
            put_last(turns, line)
        fields: Json = {
            "model": self.model,
            "messages": turns,
            "tools": [tool.function() for tool in self.tools],
            "user": self.user,
            "cache_salt": self.cache_salt,
            "timeout": self.timeout,
        }
        if "priority" in self.model_fields_set:
            fields["priority"] = self.priority
        if self.messages[-1].role == "assistant" and "tool_calls" not in fields["messages"][-1]:
            fields["continue_final_message"] = True
        return fields | self._choice_fields() | self._thought_fields()

    def _choice_fields(self) -> Json:
        if (choice := self.tool_choice) is None:
            return {}
        named = {"type": "function", "function": {"name": choice.name}}
        demanded = {"auto": "auto", "any": "required", "tool": named, "none": "none"}[choice.type]
        return {"tool_choice": demanded, "parallel_tool_calls": not choice.disable_parallel_tool_use}

    def _thought_fields(self) -> Json:
        fields: Json = {}
        if self.thinking is not None:
            wanted = self.thinking.type != "disabled"
            fields["chat_template_kwargs"] = {"enable_thinking": wanted, "thinking": wanted}
            if wanted and self.thinking.budget_tokens is not None:
                fields["thinking_token_budget"] = self.thinking.budget_tokens
        output = self.output_config or OutputConfig()
        if output.effort is not None:
            fields["reasoning_effort"] = EFFORTS[output.effort]
        if (form := output.format or self.output_format) is not None:
            bounded(form.json_schema, MAX_DEPTH, MAX_TOOL_VALUES)
            schema = {"name": "answer", "schema": form.json_schema, "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return fields


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: int = declared(
        "max_tokens", default=..., ge=0, description="0: the prompt is computed and cached, and not answered."
    )
    metadata: Metadata | None = None
    stop_sequences: list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]] = Field(
        default_factory=list, max_length=MAX_STOPS
    )
    temperature: float = declared("temperature")
    top_p: float = declared("top_p")
    top_k: int = declared("top_k", description="0 or -1: off.")
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1, description="Taken modulo 2^64.")
    stream: bool = False

    def _chat_fields(self, volatile: Volatile) -> Json:
        fields = super()._chat_fields(volatile)
        for name in ("temperature", "top_p", "top_k", "seed"):
            if name in self.model_fields_set:
                fields[name] = getattr(self, name)
        if not self.user and self.metadata is not None and self.metadata.user_id:
            fields["user"] = self.metadata.user_id[:MAX_USER]
        return fields | {
            "max_tokens": self.max_tokens or 1,
            "stop": self.stop_sequences,
            "stream": self.stream,
        }
