"""Ollama's API: its request bodies, and what they are as requests of the chat API."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from gateway.api.common.body import validated
from gateway.api.common.fields import (
    MAX_INT32,
    MAX_MESSAGES,
    Count,
    Inputs,
    Seed,
    Stops,
    bounded,
    declared,
    nullable,
)
from gateway.api.common.request_schema import BodyPart, RequestBody
from gateway.api.messages.images import from_base64
from gateway.api.messages.tools import (
    MAX_CALLS,
    MAX_ID,
    MAX_NAME,
    MAX_TOOL_DEPTH,
    MAX_TOOL_VALUES,
    CallArguments,
    Tools,
)
from gateway.api.openai.chat_schema import ChatBody
from gateway.api.pooling.embeddings_schema import EmbeddingBody
from gateway.errors import BadRequest
from ops.runtime.image_store import MAX_IMAGES

Json = dict[str, Any]

NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
"""Parameters of the chat API by the names of options."""


class _Part(BodyPart):
    """A part of a body. As in the body itself, null counts as an absent field."""

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: cls.value_of(name, part) for name, part in value.items() if part is not None}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        reference = super().__get_pydantic_json_schema__(core, handler)
        schema = handler.resolve_ref_schema(reference)
        required = schema.get("required", ())
        schema["properties"] = {
            name: field if name in required else nullable(field)
            for name, field in schema["properties"].items()
        }
        return reference


class Options(_Part):
    """Parameters of an answer. What is left out is the model's own default."""

    place: ClassVar[str] = "options."

    temperature: float = declared("temperature")
    top_p: float = declared("top_p")
    top_k: int = declared("top_k", description="0 or -1: off.")
    min_p: float = declared("min_p")
    typical_p: float = declared("typical_p")
    repeat_penalty: float = declared("repetition_penalty")
    presence_penalty: float = declared("presence_penalty")
    frequency_penalty: float = declared("frequency_penalty")
    seed: Seed = None
    stop: Stops = Field(default_factory=list)
    num_predict: int = Field(
        -1, ge=-2, le=MAX_INT32, description="Tokens at most; below 1: up to the end of the context."
    )

    def fields(self) -> Json:
        """The same parameters of the chat API."""
        found = {NAMES[name]: getattr(self, name) for name in self.model_fields_set & NAMES.keys()}
        return found | ({"max_tokens": self.num_predict} if self.num_predict > 0 else {})


class OllamaFunction(_Part):
    """A function and its arguments: a JSON object, or its text."""

    place: ClassVar[str] = "messages.tool_calls.function."

    name: str = Field(min_length=1, max_length=MAX_NAME)
    arguments: CallArguments = "{}"


class OllamaCall(_Part):
    """A call that the model has made."""

    place: ClassVar[str] = "messages.tool_calls."

    id: str = Field("", max_length=MAX_ID)
    function: OllamaFunction


Images = Annotated[
    list[Annotated[str, AfterValidator(from_base64)]] | None,
    Field(max_length=MAX_IMAGES, description="PNG, JPEG, WebP or GIF files in base64."),
]
"""Each as text, see `messages/images.py`."""


class OllamaMessage(_Part):
    """One message of a conversation."""

    place: ClassVar[str] = "messages."

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str = Field("", description="What the assistant thought before.")
    tool_calls: list[OllamaCall] = Field(default_factory=list, max_length=MAX_CALLS)
    tool_name: str = Field("", max_length=MAX_NAME, description="Of which function this is the result.")
    tool_call_id: str = Field("", max_length=MAX_ID)
    images: Images = None


def _format(value: object) -> object:
    if value in ("", "json"):
        return value
    if not isinstance(value, dict):
        raise PydanticCustomError("invalid_choice", "Input should be 'json' or a JSON Schema")
    bounded(value, MAX_TOOL_DEPTH, MAX_TOOL_VALUES)
    return value


Format = Annotated[
    str | Json,
    BeforeValidator(_format),
    WithJsonSchema({"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]}),
]


def _think(value: object) -> object:
    if isinstance(value, bool) or value in _LEVELS:
        return value
    raise PydanticCustomError("invalid_choice", f"Input should be true, false, {', '.join(_LEVELS)}")


_LEVELS = ("low", "medium", "high", "max")
Think = Annotated[
    bool | str | None,
    BeforeValidator(_think),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": list(_LEVELS)}]}),
]


class OllamaBody(RequestBody):
    """Fields that the two generating endpoints of Ollama's API have in common."""

    ignored: ClassVar[frozenset[str]] = RequestBody.ignored | {"keep_alive"}
    options: Options = Field(default_factory=Options)
    format: Format = Field("", description="`json`, or a JSON Schema that the answer follows.")
    think: Think = Field(
        None, description="Whether or how much the model thinks, if its template has a switch for it."
    )
    stream: bool = True
    logprobs: bool = False
    top_logprobs: int | None = declared("logprobs")

    @property
    def loads(self) -> bool:
        """Nothing is asked for but that the model is there."""
        raise NotImplementedError

    def chat(self, model: str) -> ChatBody:
        """The same request of the chat API, to `model`. Raises `BadRequest`."""
        fields: Json = self.options.fields() | {
            "model": model,
            "stream": self.stream,
            "logprobs": self.logprobs,
            "top_logprobs": self.top_logprobs if self.logprobs else None,
            "user": self.user,
            "cache_salt": self.cache_salt,
            "timeout": self.timeout,
        }
        if "priority" in self.model_fields_set:
            fields["priority"] = self.priority
        if self.think is not None:
            fields["thinking"] = self.think is not False
            if isinstance(self.think, str):
                fields["reasoning_effort"] = self.think
        if isinstance(self.format, dict):
            shape = {"name": "answer", "schema": self.format}
            fields["response_format"] = {"type": "json_schema", "json_schema": shape}
        elif self.format:
            fields["response_format"] = {"type": "json_object"}
        return validated(fields | self._asked(), ChatBody)

    def _asked(self) -> Json:
        """What is asked: fields of the chat API."""
        raise NotImplementedError


class OllamaChatBody(OllamaBody):
    """POST /api/chat."""

    messages: list[OllamaMessage] = Field(max_length=MAX_MESSAGES, description="Empty: is the model there?")
    tools: Tools = Field(default_factory=list)
    truncate: bool = Field(
        True,
        description="Leave out the oldest messages if the conversation is too long, instead of refusing it.",
    )

    @property
    def loads(self) -> bool:
        return not self.messages

    def _asked(self) -> Json:
        last = self.messages[-1]
        return {
            "messages": conversation(self.messages),
            "tools": self.tools,
            "continue_final_message": bool(last.role == "assistant" and last.content and not last.tool_calls),
        }


class OllamaGenerateBody(OllamaBody):
    """POST /api/generate."""

    neutral: ClassVar[dict[str, tuple[object, ...]]] = {
        "template": ("",),
        "context": ([],),
    }

    prompt: str = Field("", description="Empty: is the model there?")
    suffix: str = Field("", description="What stands after the gap that the answer fills; empty: no gap.")
    system: str = ""
    raw: bool = Field(False, description="The prompt is the whole text, without the chat template.")
    images: Images = None

    @property
    def loads(self) -> bool:
        return not (self.prompt or self.suffix or self.images)

    @model_validator(mode="after")
    def _nothing_shows_images(self) -> "OllamaGenerateBody":
        if self.images and (self.raw or self.suffix):
            message = "'images': a prompt that is 'raw' or has a 'suffix' has none."
            raise BadRequest(message, param="images", code="invalid_value")
        return self

    def _asked(self) -> Json:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"messages": [*system, {"role": "user", "content": _shown(self.prompt, self.images)}]}


Nothing = Literal[""] | Annotated[list[Any], Field(max_length=0)]
"""No text."""


class _Embedding(RequestBody):
    ignored: ClassVar[frozenset[str]] = RequestBody.ignored | {"keep_alive", "options"}

    @property
    def loads(self) -> bool:
        """Nothing is asked for but that the model is there."""
        raise NotImplementedError

    def embedding(self, model: str) -> EmbeddingBody:
        """The same request of OpenAI's API, to `model`. Raises `BadRequest`."""
        fields: Json = {name: getattr(self, name) for name in ("user", "cache_salt", "timeout")}
        if "priority" in self.model_fields_set:
            fields["priority"] = self.priority
        return validated(fields | self._asked() | {"model": model}, EmbeddingBody)

    def _asked(self) -> Json:
        """What is asked: fields of OpenAI's API."""
        raise NotImplementedError


class EmbedBody(_Embedding):
    """POST /api/embed."""

    input: Nothing | Inputs = Field("", union_mode="left_to_right", description="Empty: is the model there?")
    dimensions: Count | None = Field(None, description="Numbers to keep from the start of each embedding.")
    truncate: bool = Field(True, description="Cut a text that is too long, instead of refusing it.")

    @property
    def loads(self) -> bool:
        return not self.input

    def _asked(self) -> Json:
        cut = {"truncate_prompt_tokens": -1} if self.truncate else {}
        return {"input": self.input, "dimensions": self.dimensions, **cut}


class PromptEmbedBody(_Embedding):
    """POST /api/embeddings, Ollama's earlier /api/embed: one text, which is cut if it is too long."""

    prompt: str = Field("", description="Empty: is the model there?")

    @property
    def loads(self) -> bool:
        return not self.prompt

    def _asked(self) -> Json:
        return {"input": self.prompt, "truncate_prompt_tokens": -1}


class ShowBody(RequestBody):
    """POST /api/show."""

    ignored: ClassVar[frozenset[str]] = RequestBody.ignored | {"verbose"}
    for_model: ClassVar[bool] = False

    model: str = ""
    name: str = Field("", description="An earlier name of `model`.")

    @model_validator(mode="after")
    def _names_a_model(self) -> "ShowBody":
        if not self.asked:
            message = "Missing required parameter: 'model'."
            raise BadRequest(message, param="model", code="missing_required_parameter")
        return self

    @property
    def asked(self) -> str:
        """The model's name."""
        return self.model or self.name


def _shown(text: str, images: list[str] | None) -> str:
    """A text after its images."""
    return "".join([*(images or ()), text])


def conversation(messages: list[OllamaMessage]) -> list[Json]:
    """Messages of the chat API. Calls without ids get some, and results those of the calls before them."""
    found: list[Json] = []
    open_calls: list[tuple[str, str]] = []
    """Id and name of the calls that have no result yet."""
    number = 0
    for message in messages:
        fields: Json = {"role": message.role, "content": _shown(message.content, message.images)}
        if message.thinking:
            fields["reasoning_content"] = message.thinking
        calls = []
        for call in message.tool_calls:
            number += 1
            # Nine characters, as some models' templates demand.
            identity = call.id or f"call{number:05}"
            function = {"name": call.function.name, "arguments": call.function.arguments}
            calls.append({"id": identity, "type": "function", "function": function})
            open_calls.append((identity, call.function.name))
        if calls:
            fields |= {"tool_calls": calls, "content": fields["content"] or None}
        if message.role == "tool":
            fields |= {"tool_call_id": _answered(message, open_calls), "name": message.tool_name}
        found.append(fields)
    return found


def _answered(message: OllamaMessage, open_calls: list[tuple[str, str]]) -> str:
    """Id of the call whose result this is: the named one, or the first one that is open."""
    if message.tool_call_id:
        return message.tool_call_id
    named = [call for call in open_calls if call[1] == message.tool_name] or open_calls
    if not named:
        return ""
    first = named[0]
    open_calls.remove(first)
    return first[0]
