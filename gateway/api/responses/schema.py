"""OpenAI's Responses API: its request bodies, and what they are as requests of the chat API."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from gateway.api.common.body import validated
from gateway.api.common.fields import (
    MAX_MESSAGES,
    Arguments,
    Seed,
    Stops,
    at_most,
    declared,
)
from gateway.api.common.request_schema import RequestBody
from gateway.api.generation.shape import StructuredOutputs
from gateway.api.messages.items import (
    AdditionalTools,
    InputItem,
    Item,
    OtherItem,
    items_from,
    messages_of,
)
from gateway.api.messages.responses_tools import Offered, Tools
from gateway.api.messages.system_messages import in_place
from gateway.api.messages.tool_choice import PLAIN, plain
from gateway.api.messages.tools import MAX_NAME, LenientPart, Schema
from gateway.api.openai.chat_schema import ChatBody
from gateway.errors import BadRequest

MAX_METADATA = 16
LOGPROBS = "message.output_text.logprobs"
"""The value of `include` that adds log probabilities to the answer."""
OPAQUE = "reasoning.encrypted_content"
"""The value of `include` that adds thoughts as texts that the client sends back unread."""
_AS_IN_CHAT = {
    *("priority", "seed", "temperature", "top_p", "top_k", "min_p", "stop", "ignore_eos"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("structured_outputs", "chat_template_kwargs"),
}
"""Fields that are passed on to the chat API if they are given."""

Json = dict[str, Any]
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=MAX_METADATA),
    at_most(MAX_METADATA),
]


class TextFormat(LenientPart):
    """What the text is like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, max_length=MAX_NAME)
    description: str | None = None
    json_schema: Schema | None = Field(None, alias="schema", description="Of type `json_schema`.")
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
        fields = self.model_dump(exclude={"type"}, exclude_none=True, by_alias=True)
        return {"type": self.type, self.type: fields}


class TextOptions(LenientPart):
    """What the text of the answer is like."""

    format: TextFormat | None = None


class ReasoningOptions(LenientPart):
    """How the model thinks before it answers."""

    effort: str | None = Field(
        None,
        max_length=64,
        description="For templates that know it; with `none` a template that can leaves out the thought.",
    )
    summary: Literal["auto", "concise", "detailed", "none"] | None = Field(
        None, description="Unless it is `none`, the thought is in `summary`, too, as it stands in `content`."
    )


_NAME = {"type": "string", "minLength": 1}
_NAMESPACE = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "Of a tool that is in one."}
_CHOICE = {
    "anyOf": [
        *PLAIN,
        {
            "type": "object",
            "properties": {"type": {"enum": ["function", "custom"]}, "name": _NAME, "namespace": _NAMESPACE},
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


class NamedConversation(LenientPart):
    """A stored conversation by its id."""

    id: str = Field(max_length=MAX_NAME)


def _name(value: object) -> object:
    return value.get("id") if isinstance(value, dict) else value


class ResponsesBody(RequestBody):
    """POST /v1/responses."""

    ignored: ClassVar[frozenset[str]] = (RequestBody.ignored - {"metadata", "store"}) | {
        *("client_metadata", "max_tool_calls", "moderation", "stream_options"),
    }
    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        "context_management": ([],),
        "prompt": (),
    }
    mixed: ClassVar[frozenset[str]] = frozenset(("input", "content", "output", "tools"))

    input: Annotated[
        list[InputItem],
        Field(max_length=MAX_MESSAGES),
        BeforeValidator(items_from, json_schema_input_type=str | list[InputItem | OtherItem]),
        at_most(MAX_MESSAGES),
    ] = Field(default_factory=list, description="May be left out where the response goes on from something.")
    instructions: str = Field("", description="Comes before the conversation.")
    previous_response_id: str = Field(
        "", max_length=MAX_NAME, description="The conversation goes on from this stored response."
    )
    conversation: Annotated[
        str,
        Field(max_length=MAX_NAME),
        BeforeValidator(_name, json_schema_input_type=str | NamedConversation),
    ] = Field(
        "",
        description="The response goes on from this conversation, and is added to it.",
    )
    store: bool | None = Field(
        None, description="Whether the response is stored: by default it is, where the gateway stores any."
    )
    tools: Tools = Field(
        default_factory=list,
        description="Functions that the model may call, and namespaces of such. Others are ignored.",
    )
    tool_choice: Annotated[Any, BeforeValidator(plain), WithJsonSchema(_CHOICE)] = Field(
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
    min_p: float = declared("min_p")
    presence_penalty: float = declared("presence_penalty")
    frequency_penalty: float = declared("frequency_penalty")
    repetition_penalty: float = declared("repetition_penalty")
    stop: Stops = Field(default_factory=list)
    ignore_eos: bool = False
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: Arguments = Field(
        default_factory=dict, description="Variables of the model's own chat template."
    )
    seed: Seed = None
    top_logprobs: int | None = declared("logprobs")
    include: list[str] = Field(
        default_factory=list,
        max_length=64,
        description=f"`{LOGPROBS}`: log probabilities of the answer's tokens. `{OPAQUE}`: thoughts for "
        "clients that send back no others. Others have no effect.",
    )
    truncation: Literal["disabled", "auto"] = Field(
        "disabled", description="With either a conversation that is too long is refused."
    )
    metadata: Metadata = Field(default_factory=dict, description="Given back with the answer.")
    stream: bool = False
    background: bool = Field(
        False, description="Answer at once; the response is made whether or not the client stays."
    )

    @model_validator(mode="after")
    def _about_something(self) -> "ResponsesBody":
        if not (self.input or self.previous_response_id or self.conversation):
            message = "Missing required parameter: 'input'."
            raise BadRequest(message, param="input", code="missing_required_parameter")
        return self

    @property
    def summary(self) -> str | None:
        """The kind of summaries of thoughts that the answer has; None: it has none."""
        return None if self.reasoning.summary == "none" else self.reasoning.summary

    @property
    def without_input(self) -> Json:
        """The fields that were given, without the conversation, as a body has them."""
        return self.model_dump(exclude={"input"}, exclude_unset=True, by_alias=True)

    def offered(self, items: Sequence[Item]) -> Offered:
        """The tools of the request, where the conversation is `items`. Raises `BadRequest`."""
        added = (tool for item in items if isinstance(item, AdditionalTools) for tool in item.tools)
        return Offered([*self.tools, *added])

    def chat(self, items: Sequence[Item], offered: Offered) -> ChatBody:
        """The same request of the chat API, where the conversation is `items`. Raises `BadRequest`.

        `offered`: the tools of both.
        """
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        fields: Json = {
            "model": self.model,
            "messages": in_place([*system, *messages_of(items)]),
            "tools": offered.functions(),
            "tool_choice": offered.choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning_effort": self.reasoning.effort,
            "max_completion_tokens": self.max_output_tokens,
            "user": self.user,
            "cache_salt": self.cache_salt,
            "timeout": self.timeout,
            "stream": self.stream,
        }
        fields |= {name: getattr(self, name) for name in self.model_fields_set & _AS_IN_CHAT}
        if self.text.format is not None:
            fields["response_format"] = self.text.format.response_format()
        if self.top_logprobs is not None or LOGPROBS in self.include:
            fields |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        return validated(fields, ChatBody)

    def echo(self, stored: bool, defaults: Mapping[str, float]) -> Json:
        """What the answer says of the request.

        `stored`: whether it is stored. `defaults`: sampling parameters that the model has of its own.
        """
        own = {name: value for name, value in defaults.items() if name not in self.model_fields_set}
        form = self.text.format or TextFormat(type="text")
        return {
            "background": self.background,
            "conversation": {"id": self.conversation} if self.conversation else None,
            "frequency_penalty": self.frequency_penalty,
            "instructions": self.instructions or None,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "metadata": self.metadata,
            "model": self.model,
            "parallel_tool_calls": self.parallel_tool_calls,
            "presence_penalty": self.presence_penalty,
            "previous_response_id": self.previous_response_id or None,
            "prompt_cache_key": None,
            "reasoning": {"effort": self.reasoning.effort, "summary": self.summary},
            "safety_identifier": None,
            "service_tier": "default",
            "store": stored,
            "temperature": own.get("temperature", self.temperature),
            "text": {"format": form.model_dump(exclude_none=True, by_alias=True)},
            "tool_choice": self.tool_choice,
            "tools": [tool.model_dump() for tool in self.tools],
            "top_logprobs": self.top_logprobs or 0,
            "top_p": own.get("top_p", self.top_p),
            "truncation": "disabled",
            "user": self.user or None,
        }
