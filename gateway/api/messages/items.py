"""Items of OpenAI's Responses API: parts of a conversation, which become messages of the chat API."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from gateway.api.common.fields import Unsupported
from gateway.api.common.ignored import Ignored
from gateway.api.messages.attached import FILE_SCHEMAS, file_as_text
from gateway.api.messages.images import IMAGE_URL, as_text, from_url
from gateway.api.messages.opaque_thoughts import thought_of
from gateway.api.messages.responses_tools import Tools, qualified
from gateway.api.messages.results import OtherFile, earlier_readable, readable
from gateway.api.messages.tools import (
    MAX_ID,
    MAX_NAME,
    CallArguments,
    LenientPart,
    input_arguments,
)
from gateway.errors import BadRequest

MAX_PARTS = 4096
"""Parts of one item."""

Json = dict[str, Any]


class InputText(LenientPart):
    """A text, the client's or the model's."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class InputRefusal(LenientPart):
    """A text of another server's model, which says that it will not answer."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


def _checked(url: str) -> str:
    from_url(url)
    return url


class InputImage(LenientPart):
    """An image."""

    type: Literal["input_image"]
    image_url: Annotated[str, AfterValidator(_checked), WithJsonSchema(IMAGE_URL)]
    detail: Literal["auto", "low", "high", "original"] | None = Field(
        None, description="`low`: the model may see it coarsely."
    )
    file_id: Unsupported = None

    @property
    def text(self) -> str:
        """As part of a text, see `images.py`."""
        if self.image_url.lstrip()[:5].lower() == "data:":
            return as_text(self.image_url.partition(",")[2], self.detail)  # it was checked
        return from_url(self.image_url, self.detail)


_TYPES_OF_PARTS = ("input_text", "output_text", "text", "refusal", "input_image")


def _parts(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    return [_known_part(part) for part in value] if isinstance(value, list) else value


def _known_part(part: object) -> object:
    """A part as it is; a file as a text. Raises `PydanticCustomError` for one that cannot be read."""
    if not isinstance(part, dict) or part.get("type") in _TYPES_OF_PARTS:
        return part
    if part.get("type") == "input_file":
        return file_as_text(part)
    message = "Only parts of types input_text, input_image, input_file, output_text and refusal are supported"
    raise PydanticCustomError("unsupported_value", message)


def _readable_part(part: Json) -> object:
    """A part that is no text, if it can be read. Raises `ValueError`."""
    return InputImage.model_validate(part) if part.get("type") == "input_image" else _known_part(part)


InputFile = Annotated[Json, WithJsonSchema(FILE_SCHEMAS[1])]
_Part = InputText | InputRefusal | InputImage
_AnyPart = Annotated[_Part, Field(discriminator="type")]
Parts = Annotated[
    list[_AnyPart],
    Field(max_length=MAX_PARTS),
    BeforeValidator(_parts, json_schema_input_type=str | list[_AnyPart | InputFile | OtherFile]),
]
"""A text, or parts: texts, images, and files that are texts."""


def _result(value: object, info: ValidationInfo) -> object:
    return readable(value, _readable_part, info.context)


ResultParts = Annotated[
    Parts,
    BeforeValidator(_result, json_schema_input_type=str | list[_AnyPart | InputFile | OtherFile] | None),
]
"""The same. A text stands for each that is neither."""


def _joined(parts: Sequence[_Part]) -> str:
    return "".join(part.text for part in parts)


def _image_characters(parts: Sequence[_Part]) -> int:
    return sum(len(part.image_url) for part in parts if isinstance(part, InputImage))


def _stored(parts: Sequence[_Part], kind: Json) -> list[Json]:
    """`kind`: what a text is stored as."""
    return [
        {"type": "input_image", "image_url": part.image_url, "detail": part.detail or "auto"}
        if isinstance(part, InputImage)
        else {**kind, "text": part.text}
        for part in parts
    ]


class _Item(LenientPart):
    """Part of the conversation."""

    id: str | None = Field(None, max_length=MAX_ID)

    @property
    def image_characters(self) -> int:
        """Characters of its images."""
        return 0

    def stored(self, item_id: str) -> Json:
        """As lists of items have it. `item_id`: its id, if it has none."""
        return self.model_dump(exclude_none=True) | {"id": self.id or item_id, "status": "completed"}


class InputMessage(_Item):
    """What somebody says."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Parts

    @property
    def image_characters(self) -> int:
        return _image_characters(self.content)

    def stored(self, item_id: str) -> Json:
        answers = {"type": "output_text", "annotations": [], "logprobs": []}
        kind = answers if self.role == "assistant" else {"type": "input_text"}
        return super().stored(item_id) | {"content": _stored(self.content, kind)}


class InputCall(_Item):
    """A call that the model has made."""

    type: Literal["function_call"]
    call_id: str = Field(max_length=MAX_ID)
    name: str = Field(min_length=1, max_length=MAX_NAME)
    namespace: str | None = Field(None, max_length=MAX_NAME)
    arguments: CallArguments = ""


class InputCustomCall(_Item):
    """A call of a custom tool that the model has made."""

    type: Literal["custom_tool_call"]
    call_id: str = Field(max_length=MAX_ID)
    name: str = Field(min_length=1, max_length=MAX_NAME)
    namespace: str | None = Field(None, max_length=MAX_NAME)
    input: str

    @property
    def arguments(self) -> str:
        return input_arguments(self.input)


class InputResult(_Item):
    """What came of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str = Field(max_length=MAX_ID)
    output: ResultParts = Field(default_factory=list)

    @property
    def image_characters(self) -> int:
        return _image_characters(self.output)

    def stored(self, item_id: str) -> Json:
        images = any(isinstance(part, InputImage) for part in self.output)
        output = _stored(self.output, {"type": "input_text"}) if images else _joined(self.output)
        return super().stored(item_id) | {"output": output}


class ReasoningText(LenientPart):
    """Part of a thought."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class InputReasoning(_Item):
    """What the model thought before. A thought that cannot be read is left out."""

    type: Literal["reasoning"]
    content: list[ReasoningText] | None = Field(None, max_length=MAX_PARTS)
    encrypted_content: str | None = Field(
        None, exclude=True, description="Stands for `content` that is empty. Another server's is ignored."
    )

    @model_validator(mode="before")
    @classmethod
    def _readable(cls, value: object) -> object:
        match value:
            case {"encrypted_content": str(text), **rest} if not rest.get("content"):
                if thought := thought_of(text):
                    return rest | {"content": [{"text": thought}]}
        return value

    def stored(self, item_id: str) -> Json:
        return super().stored(item_id) | {"summary": [], "content": self.model_dump()["content"] or []}


class AdditionalTools(_Item):
    """Tools that are offered from here on. The model sees them from the beginning."""

    type: Literal["additional_tools"]
    role: str = Field("developer", max_length=64)
    tools: Tools


class ItemReference(LenientPart):
    """An item of a stored response."""

    type: Literal["item_reference"]
    id: str = Field(max_length=MAX_NAME)


_Kept = InputMessage | InputCall | InputCustomCall | InputResult | InputReasoning | AdditionalTools
_RESULTS = ("function_call_output", "custom_tool_call_output")
_TYPES = (
    *("message", "function_call", "custom_tool_call", *_RESULTS),
    *("reasoning", "additional_tools", "item_reference"),
)
Item = Annotated[_Kept, Field(discriminator="type")]
InputItem = Annotated[_Kept | ItemReference, Field(discriminator="type")]
OtherItem = Annotated[
    Json,
    WithJsonSchema(
        {
            "type": "object",
            "description": "An item of another server, such as `web_search_call`: it is ignored.",
            "properties": {"type": {"type": "string", "not": {"enum": list(_TYPES)}}},
            "required": ["type"],
        }
    ),
]


def items_from(value: object, info: ValidationInfo) -> object:
    """A text or items, as items with their types.

    Items of other types are of another server, on which the conversation began: encrypted summaries, calls of
    its own tools. They are left out, and noted as ignored; where nothing is, this raises `BadRequest`.
    """
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise PydanticCustomError("string_type", "Input should be a string or a list of items")
    items, left_out = [], set[str]()
    for number, item in enumerate(value):
        if isinstance(item, dict):
            item = _told(item | {"type": "message"} if item.get("type") is None else item)
            kind, call_id = item["type"], item.get("call_id")
            if kind in _RESULTS and isinstance(call_id, str) and call_id in left_out:
                continue
            if kind not in _TYPES:
                _leave_out(number, kind, info)
                if isinstance(call_id, str):
                    left_out.add(call_id)
                continue
        items.append(item)
    return earlier_readable(items, _readable_part, info.context, info.field_name or "")


def _leave_out(number: int, kind: object, info: ValidationInfo) -> None:
    if isinstance(kind, str) and isinstance(info.context, Ignored):
        info.context.note(f"{info.field_name}.{kind}")
        return
    param, known = f"{info.field_name}[{number}].type", ", ".join(_TYPES)
    message = f"'{param}': only items of these types are supported: {known}."
    raise BadRequest(message, param=param, code="unsupported_parameter")


def _told(item: Json) -> Json:
    """What another agent of Codex tells this one, as a message of the user's, if some of it can be read."""
    match item:
        case {"type": "agent_message", "content": list(parts)}:
            texts = [one for one in parts if isinstance(one, dict) and one.get("type") in _TYPES_OF_PARTS]
            return {"type": "message", "role": "user", "content": texts} if texts else item
    return item


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
            case InputCall() | InputCustomCall():
                message = answer()
                message["content"] = message["content"] or None
                function = {"name": qualified(item.name, item.namespace), "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
            case InputResult():
                result = {"role": "tool", "content": _joined(item.output), "tool_call_id": item.call_id}
                found.append(result)
    return found


def stored_items(items: Sequence[Item], request_id: str) -> list[Json]:
    """Items of a request as they are stored."""
    return [item.stored(f"in_{request_id}_{number}") for number, item in enumerate(items)]
