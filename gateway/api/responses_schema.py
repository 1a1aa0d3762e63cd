"""OpenAI's Responses API: its request bodies, and what they are as requests of the chat API."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from gateway.api.body import validated
from gateway.api.fields import MAX_MESSAGES, bounded, declared
from gateway.api.schema import ChatBody, RequestBody
from gateway.api.shape import MAX_DEPTH
from gateway.api.tools import MAX_NAME, MAX_TOOL_DEPTH, MAX_TOOL_VALUES, MAX_TOOLS
from gateway.errors import BadRequest

MAX_PARTS = 4096
"""Parts of one item."""
MAX_METADATA = 16
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that adds log probabilities to the answer."""

Json = dict[str, Any]


class _Part(BaseModel):
    """Part of a request. Other fields are those of answers, which clients send back."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


class InputText(_Part):
    """A text, the client's or the model's."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputRefusal(_Part):
    """A text of another server's model, which says that it will not answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


_TEXTS = ("input_text", "output_text", "text", "refusal")


def _parts(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    for part in value if isinstance(value, list) else ():
        if isinstance(part, dict) and part.get("type") not in _TEXTS:
            message = "Only parts of types input_text, output_text and refusal are supported"
            raise PydanticCustomError("unsupported_value", message)
    return value


_TextPart = Annotated[InputText | InputRefusal, Field(discriminator="type")]
Texts = Annotated[
    list[_TextPart],
    Field(max_length=MAX_PARTS),
    BeforeValidator(_parts, json_schema_input_type=str | list[_TextPart]),
]
"""A text, or the parts of one."""


def _joined(parts: Sequence[InputText | InputRefusal]) -> str:
    return "".join(part.text for part in parts)


class _Item(_Part):
    """Part of the conversation."""

    id: str | None = Field(None, max_length=MAX_NAME)

    def stored(self, item_id: str) -> Json:
        """As lists of items have it. `item_id`: its id, if it has none."""
        return self.model_dump() | {"id": self.id or item_id, "status": "completed"}


class InputMessage(_Item):
    """What somebody says."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts

    def stored(self, item_id: str) -> Json:
        answers = {"type": "output_text", "annotations": [], "logprobs": []}
        kind = answers if self.role == "assistant" else {"type": "input_text"}
        return super().stored(item_id) | {"content": [{**kind, "text": part.text} for part in self.content]}


class InputCall(_Item):
    """A call that the model has made."""

    type: Literal["function_call"]
    call_id: str = Field(max_length=MAX_NAME)
    name: str = Field(min_length=1, max_length=MAX_NAME)
    arguments: str


class InputResult(_Item):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str = Field(max_length=MAX_NAME)
    output: Texts

    def stored(self, item_id: str) -> Json:
        return super().stored(item_id) | {"output": _joined(self.output)}


class ReasoningText(_Part):
    """Part of a thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class InputReasoning(_Item):
    """What the model thought before. A thought that cannot be read is left out."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = Field(None, max_length=MAX_PARTS)

    def stored(self, item_id: str) -> Json:
        return super().stored(item_id) | {"summary": [], "content": self.model_dump()["content"] or []}


class ItemReference(_Part):
    """An item of a stored response."""

    type: Literal["item_reference"]
    id: str = Field(max_length=MAX_NAME)


_ITEMS = ("message", "function_call", "function_call_output", "reasoning", "item_reference")
Item = Annotated[InputMessage | InputCall | InputResult | InputReasoning, Field(discriminator="type")]
_Input = Annotated[
    InputMessage | InputCall | InputResult | InputReasoning | ItemReference, Field(discriminator="type")
]


def _items(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("string_type", "Input should be a string or a list of items")
    items = []
    for number, item in enumerate(value):
        if isinstance(item, dict):
            item = {"type": "message"} | item
            if item["type"] not in _ITEMS:
                param, known = f"input[{number}].type", ", ".join(_ITEMS)
                message = f"'{param}': only items of these types are supported: {known}."
                raise BadRequest(message, param=param, code="unsupported_parameter")
        items.append(item)
    return items


def messages_of(items: Sequence[Item]) -> list[Json]:
    """Items as messages of the chat API: a thought, a text and calls that follow it are one message there."""
    found: list[Json] = []

    def answer(*later: str) -> Json:
        """The assistant's message that a part belongs to: a new one if the last has a field of `later`."""
        if not found or found[-1]["role"] != "assistant" or any(found[-1].get(name) for name in later):
            found.append({"role": "assistant", "content": ""})
        return found[-1]

    for item in items:
        match item:
            case InputReasoning():
                thought = "".join(part.text for part in item.content or ())
                if thought:
                    answer("reasoning_content", "content", "tool_calls")["reasoning_content"] = thought
            case InputMessage(role="assistant"):
                answer("content", "tool_calls")["content"] = _joined(item.content)
            case InputMessage():
                found.append({"role": item.role, "content": _joined(item.content)})
            case InputCall():
                message = answer()
                message["content"] = message["content"] or None
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
            case InputResult():
                result = {"role": "tool", "content": _joined(item.output), "tool_call_id": item.call_id}
                found.append(result)
    return found


class FunctionTool(_Part):
    """A function that the model may call."""

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=MAX_NAME)
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None

    def function(self) -> Json:
        """As the chat API has it."""
        return {"type": "function", "function": self.model_dump(exclude={"type"}, exclude_none=True)}


def _tools(value: object) -> object:
    bounded(value, MAX_TOOL_DEPTH, MAX_TOOL_VALUES)
    for number, tool in enumerate(value if isinstance(value, list) else ()):
        if isinstance(tool, dict) and tool.get("type", "function") != "function":
            param = f"tools[{number}].type"
            message = f"'{param}': only functions are supported."
            raise BadRequest(message, param=param, code="unsupported_parameter")
    return value


class TextFormat(_Part):
    """What the text is like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, max_length=MAX_NAME)
    description: str | None = None
    json_schema: Json | None = Field(None, alias="schema", description="Of type `json_schema`.")
    strict: bool | None = None

    @model_validator(mode="after")
    def _a_schema_has_its_type(self) -> "TextFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            message = "'text.format.schema' goes with the type 'json_schema', and with no other."
            raise BadRequest(message, param="text.format.schema", code="invalid_value")
        return self

    def response_format(self) -> Json:
        """As the chat API has it."""
        if self.json_schema is None:
            return {"type": self.type}
        bounded(self.json_schema, MAX_DEPTH, MAX_TOOL_VALUES)
        fields = self.model_dump(exclude={"type"}, exclude_none=True, by_alias=True)
        return {"type": self.type, self.type: fields}


class TextOptions(_Part):
    """What the text of the answer is like."""

    format: TextFormat | None = None


class ReasoningOptions(_Part):
    """How the model thinks before it answers."""

    effort: str | None = Field(
        None,
        max_length=64,
        description="For templates that know it; with `none` a template that can leaves out the thought.",
    )


_NAME = {"type": "string", "minLength": 1}
_CHOICE = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        {
            "type": "object",
            "properties": {"type": {"const": "function"}, "name": _NAME},
            "required": ["type", "name"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "allowed_tools"},
                "mode": {"enum": ["auto", "required"]},
                "tools": {
                    "type": "array",
                    "items": {"type": "object", "properties": {"name": _NAME}, "required": ["name"]},
                },
            },
            "required": ["type", "tools"],
        },
    ]
}


def _chat_choice(choice: Any) -> object:
    """A `tool_choice` as the chat API has it, which checks it."""
    match choice:
        case {"type": "function"}:
            return {"type": "function", "function": {"name": choice.get("name")}}
        case {"type": "allowed_tools"}:
            return {"type": "allowed_tools", "allowed_tools": choice}
    return choice


class ResponsesBody(RequestBody):
    """POST /v1/responses."""

    ignored: ClassVar[frozenset[str]] = (RequestBody.ignored - {"metadata", "store"}) | {
        *("max_tool_calls", "moderation", "stream_options"),
    }
    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        "context_management": ([],),
        "conversation": (),
        "prompt": (),
    }
    mixed: ClassVar[frozenset[str]] = frozenset(("input", "content", "output"))

    input: Annotated[
        list[_Input],
        Field(min_length=1, max_length=MAX_MESSAGES),
        BeforeValidator(_items, json_schema_input_type=str | list[_Input]),
    ]
    instructions: str = Field("", description="Comes before the conversation.")
    previous_response_id: str = Field(
        "", max_length=MAX_NAME, description="The conversation goes on from this stored response."
    )
    store: bool | None = Field(
        None, description="Whether the response is stored: by default it is, where the gateway stores any."
    )
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS), BeforeValidator(_tools)] = Field(
        default_factory=list, description="Functions that the model may call."
    )
    tool_choice: Annotated[Any, WithJsonSchema(_CHOICE)] = Field(
        "auto",
        description="`none` hides the functions from the model. `required` or a function's name demands one.",
    )
    parallel_tool_calls: bool = Field(True, description="With `false` an answer has one call at most.")
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    max_output_tokens: int | None = declared("max_tokens")
    temperature: float = declared("temperature")
    top_p: float = declared("top_p")
    top_k: int = declared("top_k", description="0 or -1: off.")
    seed: int | None = Field(None, ge=-(2**63), le=2**64 - 1, description="Taken modulo 2^64.")
    top_logprobs: int | None = declared("logprobs")
    include: list[str] = Field(
        default_factory=list,
        max_length=64,
        description=f"`{LOGPROBS}`: log probabilities of the answer's tokens. Others have no effect.",
    )
    truncation: Literal["disabled", "auto"] = Field(
        "disabled", description="With either a conversation that is too long is refused."
    )
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = Field(
        default_factory=dict, max_length=MAX_METADATA, description="Given back with the answer."
    )
    stream: bool = False
    background: bool = Field(
        False, description="Answer at once; the response is made whether or not the client stays."
    )

    @property
    def without_input(self) -> Json:
        """The fields that were given, without the conversation, as a body has them."""
        return self.model_dump(exclude={"input"}, exclude_unset=True, by_alias=True)

    def chat(self, items: Sequence[Item]) -> ChatBody:
        """The same request of the chat API, where the conversation is `items`. Raises `BadRequest`."""
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        fields: Json = {
            "model": self.model,
            "messages": system + messages_of(items),
            "tools": [tool.function() for tool in self.tools],
            "tool_choice": _chat_choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning.effort,
            "max_completion_tokens": self.max_output_tokens,
            "user": self.user,
            "cache_salt": self.cache_salt,
            "timeout": self.timeout,
            "stream": self.stream,
        }
        for name in ("priority", "temperature", "top_p", "top_k", "seed"):
            if name in self.model_fields_set:
                fields[name] = getattr(self, name)
        if self.text.format is not None:
            fields["response_format"] = self.text.format.response_format()
        if self.top_logprobs is not None or LOGPROBS in self.include:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return validated(fields, ChatBody)

    def echo(self, stored: bool) -> Json:
        """What the answer says of the request. `stored`: whether it is stored."""
        given = self.model_dump(include=self.model_fields_set)
        form = self.text.format or TextFormat(type="text")
        return {
            "background": self.background,
            "instructions": self.instructions or None,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "metadata": self.metadata,
            "model": self.model,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": self.previous_response_id or None,
            "reasoning": {"effort": self.reasoning.effort, "summary": None},
            "store": stored,
            "temperature": given.get("temperature"),
            "text": {"format": form.model_dump(exclude_none=True, by_alias=True)},
            "tool_choice": self.tool_choice,
            "tools": [tool.model_dump() for tool in self.tools],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": given.get("top_p"),
            "truncation": "disabled",
            "user": self.user or None,
        }
