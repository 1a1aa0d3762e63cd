"""Anthropic's Messages API: its request bodies, and what they are as requests of the chat API."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator

from gateway.api.anthropic.parts import EachText, Json, Turns
from gateway.api.anthropic.volatile import Volatile, put_last, without_volatile
from gateway.api.common.body import validated
from gateway.api.common.fields import MAX_INT32, MAX_MESSAGES, Seed, Stops, declared
from gateway.api.common.request_schema import RequestBody
from gateway.api.messages.system_messages import in_place
from gateway.api.messages.tools import (
    MAX_NAME,
    MAX_TOOLS,
    LenientPart,
    Schema,
    functions,
    other_tool,
)
from gateway.api.openai.chat_schema import ChatBody
from gateway.errors import BadRequest

MAX_USER = 256
"""Characters of a user's name."""
EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""What chat templates know, by Anthropic's levels of effort."""


def _tools(value: object, info: ValidationInfo) -> object:
    return functions(value, info, ("custom", None))


class Tool(LenientPart):
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


_OtherTool = Annotated[Json, WithJsonSchema(other_tool("custom"))]
Tools = Annotated[
    list[Tool],
    Field(max_length=MAX_TOOLS),
    BeforeValidator(
        _tools, json_schema_input_type=Annotated[list[Tool | _OtherTool], Field(max_length=MAX_TOOLS)]
    ),
]


def _defined_in(messages: object) -> dict[str, Json]:
    """The tools that notes in the conversation define, by their names."""
    found = {}
    for turn in messages if isinstance(messages, list) else ():
        match turn:
            case {"content": list(parts)}:
                for part in parts:
                    match part:
                        case {"type": "tool_addition", "tool": {"definition": {"name": str(name)} as tool}}:
                            found[name] = tool
    return found


def _name_of(tool: object) -> str:
    """Empty if it is no text."""
    match tool:
        case {"name": str(name)}:
            return name
    return ""


class Choice(LenientPart):
    """Which tools the model may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str = Field("", max_length=MAX_NAME, description="Of type `tool`: its name.")
    disable_parallel_tool_use: bool | None = None


class Thinking(LenientPart):
    """Whether the model thinks before it answers, if its chat template has a switch for it."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1, le=MAX_INT32, description="Tokens of the thought at most.")


class Format(LenientPart):
    """A JSON Schema that the answer follows."""

    type: Literal["json_schema"]
    json_schema: Schema = Field(alias="schema")


class OutputConfig(LenientPart):
    """What the answer is like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: Format | None = None


class Metadata(LenientPart):
    """Who asks."""

    user_id: str | None = None


class _LenientChatBody(ChatBody):
    """Anthropic's models think for about as many tokens as their budget says: it is a wish."""

    lenient_budget: ClassVar[bool] = True


class CountBody(RequestBody):
    """POST /v1/messages/count_tokens."""

    ignored: ClassVar[frozenset[str]] = (RequestBody.ignored - {"metadata"}) | {
        *("cache_control", "context_management", "diagnostics", "inference_geo", "speed"),
    }
    neutral: ClassVar[dict[str, tuple[object, ...]]] = {"mcp_servers": ([],), "container": (), "thread": ()}
    mixed: ClassVar[frozenset[str]] = frozenset(("content",))

    messages: Turns = Field(min_length=1, max_length=MAX_MESSAGES)
    system: EachText = Field(default_factory=list, description="Comes before the conversation.")
    tools: Tools = Field(
        default_factory=list,
        description="Functions that the model may call. Tools of other types are ignored.",
    )
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: Format | None = Field(None, description="An earlier place of `output_config.format`.")

    @model_validator(mode="before")
    @classmethod
    def _with_tools_of_notes(cls, given: Any) -> Any:
        """The model sees all tools from the beginning: a prompt that begins otherwise is in no cache."""
        match given:
            case {"messages": messages} if added := _defined_in(messages):
                tools = given.get("tools", [])
                if isinstance(tools, list):
                    others = [tool for tool in tools if _name_of(tool) not in added]
                    return given | {"tools": [*others, *added.values()]}
        return given

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
        return validated(self._chat_fields(volatile), _LenientChatBody)

    def _chat_fields(self, volatile: Volatile) -> Json:
        text, line = without_volatile(self.system)
        system = [{"role": "system", "content": text}] if text else []
        turns = in_place([*system, *(message for turn in self.messages for message in turn.messages())])
        answering = self.messages[-1].role == "assistant"
        if answering and turns[-1] == {"role": "assistant", "content": ""}:
            turns.pop()  # an answer that has not begun
        if not turns or (not answering and turns[-1]["role"] == "assistant"):
            turns.append({"role": "user", "content": ""})  # notes alone are the user's turn, too
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
        match turns[-1]:
            case {"role": "assistant", "content": str(text), **rest} if text and "tool_calls" not in rest:
                fields["continue_final_message"] = answering
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
            fields["thinking"] = wanted
            if wanted and self.thinking.budget_tokens is not None:
                fields["thinking_token_budget"] = self.thinking.budget_tokens
        output = self.output_config or OutputConfig()
        if output.effort is not None:
            fields["reasoning_effort"] = EFFORTS[output.effort]
        if (form := output.format or self.output_format) is not None:
            schema = {"name": "answer", "schema": form.json_schema, "strict": True}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return fields


class MessagesBody(CountBody):
    """POST /v1/messages."""

    # It asks for a summary of the conversation in place of an answer.
    neutral: ClassVar[dict[str, tuple[object, ...]]] = CountBody.neutral | {"compaction": ()}

    max_tokens: int = declared(
        "max_tokens", default=..., ge=0, description="0: the prompt is computed and cached, and not answered."
    )
    metadata: Metadata | None = None
    stop_sequences: Stops = Field(default_factory=list)
    temperature: float = declared("temperature")
    top_p: float = declared("top_p")
    top_k: int = declared("top_k", description="0 or -1: off.")
    seed: Seed = None
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
