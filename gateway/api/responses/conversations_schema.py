"""OpenAI's Conversations API: its request bodies and answers."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gateway.api.common.answers import AnswerPart
from gateway.api.common.request_schema import RequestBody
from gateway.api.messages.items import Item, OtherItem, items_from
from gateway.api.responses.schema import Metadata

MAX_ITEMS = 20
"""Items of one request, as in OpenAI's API."""

_Items = Annotated[
    list[Item],
    Field(max_length=MAX_ITEMS),
    BeforeValidator(items_from, json_schema_input_type=str | list[Item | OtherItem]),
]
_NO_MODEL = "Without effect: each response names its own."


class _Body(RequestBody):
    ignored: ClassVar[frozenset[str]] = RequestBody.ignored - {"metadata"}
    for_model: ClassVar[bool] = False
    mixed: ClassVar[frozenset[str]] = frozenset(("items", "content", "output", "tools"))

    model: str = Field("", description=_NO_MODEL)


class ConversationBody(_Body):
    """POST /v1/conversations."""

    items: _Items = Field(default_factory=list, description="What it begins with.")
    metadata: Metadata = Field(default_factory=dict, description="Given back with the conversation.")


class ConversationChange(_Body):
    """POST /v1/conversations/{conversation_id}."""

    metadata: Metadata = Field(description="In place of what it was.")


class ItemsBody(_Body):
    """POST /v1/conversations/{conversation_id}/items."""

    items: Annotated[_Items, Field(min_length=1)]


class Conversation(AnswerPart):
    """A conversation without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int = Field(description="Unix time, seconds.")
    metadata: dict[str, str]


class DeletedConversation(AnswerPart):
    """The answer of DELETE /v1/conversations/{conversation_id}."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class ConversationItem(BaseModel):
    """An item as a request or a response has it, with its id."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: Literal[
        "message",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "reasoning",
        "additional_tools",
    ]
    status: Literal["completed", "incomplete"]


class ConversationItems(AnswerPart):
    """Items of a conversation."""

    object: Literal["list"]
    data: list[dict[str, Any]] = Field(description="Items as requests and responses have them, with ids.")
    first_id: str | None
    last_id: str | None
    has_more: bool


CONVERSATIONS: tuple[type[BaseModel], ...] = (
    *(ConversationBody, ConversationChange, ItemsBody),
    *(Conversation, DeletedConversation, ConversationItem, ConversationItems),
)
