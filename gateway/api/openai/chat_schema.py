"""What clients may ask of /v1/chat/completions."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from gateway.api.common.fields import (
    MAX_INT32,
    MAX_MESSAGE_FIELDS,
    MAX_MESSAGES,
    MAX_TEMPLATE_LENGTH,
    Arguments,
    Documents,
    Unsupported,
    alternatives,
    at_most,
    declared,
)
from gateway.api.common.ignored import Ignored
from gateway.api.common.request_schema import BodyPart
from gateway.api.generation.schema import GenerationBody
from gateway.api.messages.attached import FILE_PARTS, file_as_text
from gateway.api.messages.content import Content, Text, text_of
from gateway.api.messages.images import has_image, image_as_text
from gateway.api.messages.items import Item, OtherItem, items_from, messages_of
from gateway.api.messages.old_functions import with_calls, with_tools
from gateway.api.messages.results import earlier_readable, readable
from gateway.api.messages.switches import Reasoning, Reasonings, Switch
from gateway.api.messages.tool_choice import ToolChoice, allowed_names, call_shape, demanded
from gateway.api.messages.tools import (
    MAX_CALLS,
    MAX_ID,
    MAX_TOOLS,
    ToolCall,
    Tools,
    as_function,
    name_of,
)
from gateway.errors import BadRequest
from proto.tokenizer_pb2 import CallShape, Shape

Json = dict[str, Any]


class Message(BodyPart):
    """One message of a conversation."""

    place: ClassVar[str] = "messages."

    role: str = Field(min_length=1, max_length=64)
    content: Content = Field(None, description="What an assistant or a tool says may have none.")
    name: str = Field("", max_length=256, description="Name of the speaker.")
    tool_calls: list[ToolCall] = Field(
        default_factory=list, max_length=MAX_CALLS, description="Functions that the assistant has called."
    )
    tool_call_id: str = Field("", max_length=MAX_ID, description="Id of the call whose result this is.")
    reasoning_content: str = Field("", description="What the assistant thought before.")
    reasoning: str = Field("", description="Another name of `reasoning_content`.")
    audio: Unsupported = None
    function_call: Unsupported = None

    @model_validator(mode="before")
    @classmethod
    def _without_empty_extras(cls, value: object, info: ValidationInfo) -> object:
        """Without null and empty fields, and without notes of OpenAI's, which client libraries send back."""
        if not isinstance(value, dict):
            return value
        if info.context is None and len(value) > MAX_MESSAGE_FIELDS:
            raise PydanticCustomError("too_long", "A message has too many fields")
        value = with_calls(value)
        fields = {
            key: part
            for key, part in value.items()
            if key == "role" or (part not in (None, []) and key not in _NOTES)
        }
        if value.get("role") not in ("assistant", "tool") or value.get("content") is not None:
            fields["content"] = value.get("content", ...)
        if value.get("role") == "tool" and "content" in fields:
            fields["content"] = readable(fields["content"], _readable_part, info.context)
        if value.get("role") == "assistant" and isinstance(fields.get("content"), list):
            fields["content"], thoughts = _apart(fields["content"])
            if thoughts:
                fields.setdefault("reasoning_content", thoughts)
        return fields


def _apart(parts: list[Any]) -> tuple[list[Any], str]:
    """What an answer said, and its thoughts, each of which is a text or, as Mistral's, text parts."""
    said, thoughts = [], []
    for part in parts:
        if isinstance(part, dict) and part.get("type") == "thinking":
            thoughts.append(text_of(part.get("thinking")))
        else:
            said.append(part)
    return said, "".join(thoughts)


_NOTES = frozenset(("refusal", "annotations"))
"""What OpenAI's answers say of a message besides its content."""


def _readable_part(part: Json) -> Json:
    """A part of a message, if it can be read. Raises `ValueError`."""
    match part.get("type"):
        case "image_url":
            return image_as_text(part)
        case kind if kind in FILE_PARTS:
            return file_as_text(part)
    raise PydanticCustomError("unsupported_value", "Only texts, images and files of texts are supported")


def _earlier(part: Json) -> Json:
    """The same of an earlier message, which may be an answer with thoughts."""
    return part if part.get("type") == "thinking" else _readable_part(part)


def _with_what_is_known(value: object, info: ValidationInfo) -> object:
    return earlier_readable(value, _earlier, info.context, "messages")


Messages = Annotated[
    list[Message], BeforeValidator(_with_what_is_known, json_schema_input_type=list[Message])
]


def _one_conversation(fields: Json, context: object) -> Json:
    """The fields of a body without an empty `messages` beside an `input`. Beside messages `input` and
    `instructions` are left out and noted. Raises `BadRequest` where nothing is ignored."""
    if not fields.get("messages"):
        return {name: value for name, value in fields.items() if name != "messages" or "input" not in fields}
    for name in ("input", "instructions"):
        if fields.get(name) and isinstance(context, Ignored):
            context.note(name)
        elif fields.get(name):
            message = f"'{name}' and 'messages': a request has one conversation."
            raise BadRequest(message, param=name, code="invalid_value")
    return {name: value for name, value in fields.items() if name not in ("input", "instructions")}


def _of_items(fields: Json) -> list[Message]:
    """The messages of a body that has items of the Responses API instead."""
    messages = messages_of(fields["input"])
    if messages and fields["instructions"]:
        messages = [{"role": "system", "content": fields["instructions"]}, *messages]
    return [Message.model_validate(one) for one in messages]


class Prediction(BodyPart):
    """What most of the answer is expected to be: a file, say, of which little is to be changed."""

    place: ClassVar[str] = "prediction."

    type: Literal["content"]
    content: Text


_FUNCTION_CALL = {
    "anyOf": [
        {"enum": ["none", "auto"]},
        {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    ]
}


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        **GenerationBody.neutral,
        "modalities": (["text"],),
        "audio": (),
        "web_search_options": (),
    }
    ignored: ClassVar[frozenset[str]] = GenerationBody.ignored | {"moderation", "verbosity"}
    mixed: ClassVar[frozenset[str]] = frozenset(("input", "content", "output"))
    lenient_budget: ClassVar[bool] = False
    """A `thinking_token_budget` is passed over where a model's thoughts cannot be counted."""

    input: Annotated[
        list[Item],
        Field(max_length=MAX_MESSAGES),
        BeforeValidator(items_from, json_schema_input_type=str | list[Item | OtherItem]),
        at_most(MAX_MESSAGES),
    ] = Field(
        default_factory=list, description="A conversation as `/v1/responses` has it. Cursor sends such."
    )
    instructions: str = Field("", description="Comes before the conversation of `input`.")
    messages: Messages = Field(
        default_factory=_of_items,
        min_length=1,
        max_length=MAX_MESSAGES,
        description="May be left out where there is an `input`.",
    )
    chat_template_kwargs: Arguments = Field(
        default_factory=dict, description="Variables of the model's own chat template."
    )
    tools: Tools = Field(
        default_factory=list, description="Functions and custom tools that the model may call."
    )
    tool_choice: ToolChoice = Field(
        "auto",
        description="`none` hides the functions from the model. `required` or a function's name demands one.",
    )
    parallel_tool_calls: bool = Field(True, description="With `false` an answer has one call at most.")
    functions: Annotated[list[Any], Field(max_length=MAX_TOOLS), at_most(MAX_TOOLS)] = Field(
        default_factory=list, description="An older form of `tools`. A call is then `function_call`."
    )
    function_call: Annotated[Any, WithJsonSchema(_FUNCTION_CALL)] = Field(
        None, description="The same of `tool_choice`, with `functions`."
    )
    reasoning_effort: str = Field(
        "",
        max_length=64,
        description="For templates that know it; with `none` a template that can leaves out the thought.",
    )
    reasoning: Reasonings = None
    thinking: Switch = Field(
        None,
        description='With `{"type": "disabled"}` a template that can leaves out the thought.',
    )
    enable_thinking: Switch = Field(None, description="Another name of `thinking`.")
    include_reasoning: bool = Field(True, description="With `false` an answer leaves out the thought.")
    prediction: Prediction | None = Field(
        None, description="What most of the answer is expected to be. It comes faster where it is."
    )
    add_generation_prompt: bool = Field(
        True, description="End the prompt with the beginning of an answer, as the chat template has it."
    )
    continue_final_message: bool = Field(
        False, description="Go on with the last message. Nothing follows it in the prompt."
    )
    documents: Documents = Field(
        default_factory=list, description="Texts to draw on, for chat templates that know of such."
    )
    chat_template: str = Field(
        "", max_length=MAX_TEMPLATE_LENGTH, description="In place of the model's own, where that is allowed."
    )
    thinking_token_budget: int | None = Field(
        None, ge=0, le=MAX_INT32, description="Tokens of the thought at most; then the answer begins."
    )
    max_completion_tokens: int | None = declared("max_tokens")
    logprobs: bool = False
    top_logprobs: int | None = declared("logprobs")

    @model_validator(mode="before")
    @classmethod
    def _in_one_form(cls, value: object, info: ValidationInfo) -> object:
        return with_tools(_one_conversation(value, info.context)) if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _consistent(self) -> "ChatBody":
        if not self.messages:
            message = "Missing required parameter: 'messages'."
            raise BadRequest(message, param="messages", code="missing_required_parameter")
        begins = self.add_generation_prompt and "add_generation_prompt" in self.model_fields_set
        if self.continue_final_message and begins:
            message = "'continue_final_message' does not go with 'add_generation_prompt'."
            raise BadRequest(message, param="continue_final_message", code="invalid_value")
        if self.top_logprobs and not self.logprobs:
            message = "'top_logprobs' is only allowed with 'logprobs'."
            raise BadRequest(message, param="top_logprobs", code="invalid_value")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            message = "'max_tokens' and 'max_completion_tokens' differ; use the latter."
            raise BadRequest(message, param="max_tokens", code="invalid_value")
        return self

    @property
    def variables(self) -> dict[str, Any]:
        """Those of the chat template: how much is to be thought, and what the client gives itself."""
        asked = self.reasoning or Reasoning()
        effort = self.reasoning_effort or asked.effort
        switches = (self.thinking, self.enable_thinking, asked.enabled, False if effort == "none" else None)
        wanted = [each for each in switches if each is not None]
        found: dict[str, Any] = {"reasoning_effort": effort} if effort else {}
        if wanted:
            found |= dict.fromkeys(("enable_thinking", "thinking"), all(wanted))
        return found | self.chat_template_kwargs

    @property
    def predicted(self) -> str:
        return "" if self.prediction is None else self.prediction.content or ""

    @property
    def has_images(self) -> bool:
        return any(has_image(message.content) for message in self.messages)

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def shape(self) -> Shape | None:
        """What the client asks for, of the text or of calls. Raises `BadRequest`."""
        shape = super().shape
        if (
            shape is not None
            and shape.param == "response_format"
            and shape.json_schema
            and self._wishes_calls
        ):
            # As with OpenAI: the model calls functions, or says something in this format.
            wished = call_shape(self._allowed, self.tool_choice, self.parallel_tool_calls)
            shape.or_calls.CopyFrom(wished or CallShape(single=not self.parallel_tool_calls))
            return shape
        calls = call_shape(self._allowed, self.tool_choice, self.parallel_tool_calls)
        if calls is None or (shape is not None and not calls.required):
            return shape
        # `response_format` is about an answer's text, and one that is a call has none: both can be asked for.
        if shape is not None and shape.param != "response_format":
            message = f"'tool_choice' and '{shape.param}': only one can be followed."
            raise BadRequest(message, param="tool_choice", code="invalid_value")
        return Shape(calls=calls, param="tools")

    @property
    def _wishes_calls(self) -> bool:
        return bool(self._allowed) and not demanded(self.tool_choice)

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The functions that the model may call in this answer."""
        return [as_function(tool) for tool in self._allowed]

    @property
    def custom(self) -> frozenset[str]:
        """Names of the functions that are custom tools: the client gets the text of their input."""
        return frozenset(name_of(tool) for tool in self._allowed if tool["type"] == "custom")

    @property
    def _allowed(self) -> list[dict[str, Any]]:
        if self.tool_choice == "none":
            return []
        names = allowed_names(self.tool_choice)
        return [tool for tool in self.tools if names is None or name_of(tool) in names]

    @property
    def wanted_logprobs(self) -> int | None:
        return alternatives(self.top_logprobs or 0) if self.logprobs else None
