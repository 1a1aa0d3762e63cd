"""/v1/conversations: items that several responses go on from, one after the other.

A response that names a conversation sees the conversation's items before those of its own input. When it has
ended, its input and its answer are added to the conversation: see `endpoints.py`.
"""

import time
import uuid
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.api.common.answers import Json, compact
from gateway.api.common.body import read_body
from gateway.api.common.listing import PARAMETERS, answer_page
from gateway.api.messages.items import stored_items
from gateway.api.responses.conversations_schema import (
    Conversation,
    ConversationBody,
    ConversationChange,
    ConversationItem,
    ConversationItems,
    DeletedConversation,
    ItemsBody,
)
from gateway.errors import BadRequest, NotFound, Unauthorized
from gateway.http.caller import caller_of
from gateway.http.openapi import getting, posting
from gateway.upstream.conversation_store import Added, ConversationStore

_ONE = "/v1/conversations/{conversation_id}"


def router(store: ConversationStore) -> APIRouter:
    routes = APIRouter()
    _add_conversations(routes, store)
    _add_items(routes, store)
    return routes


def _add_conversations(routes: APIRouter, store: ConversationStore) -> None:
    @routes.post("/v1/conversations", openapi_extra=posting(ConversationBody, Conversation))
    async def create_conversation(request: Request) -> Response:
        """Begin a conversation."""
        asked = await read_body(request, ConversationBody)
        made = {"id": f"conv_{uuid.uuid4().hex}", "object": "conversation", "created_at": int(time.time())}
        made |= {"metadata": asked.metadata}
        items = stored_items(asked.items, request.state.request_id)
        _check_ids(items, ())
        await store.create(caller_of(request).tenant, made, items)
        return _json(made)

    @routes.get(_ONE, openapi_extra=getting(Conversation, Unauthorized, NotFound))
    async def retrieve_conversation(request: Request, conversation_id: str) -> Response:
        """A conversation, without its items."""
        return _json(await _found(request, store, conversation_id))

    @routes.post(_ONE, openapi_extra=posting(ConversationChange, Conversation))
    async def update_conversation(request: Request, conversation_id: str) -> Response:
        """Change the metadata of a conversation."""
        asked = await read_body(request, ConversationChange)
        made = await _found(request, store, conversation_id) | {"metadata": asked.metadata}
        if not await store.update(caller_of(request).tenant, made):
            raise _missing(conversation_id)
        return _json(made)

    @routes.delete(_ONE, openapi_extra=getting(DeletedConversation, Unauthorized, NotFound))
    async def delete_conversation(request: Request, conversation_id: str) -> Response:
        """Delete a conversation and its items. Its responses stay."""
        if not await store.delete(caller_of(request).tenant, conversation_id):
            raise _missing(conversation_id)
        return _json({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


def _add_items(routes: APIRouter, store: ConversationStore) -> None:
    @routes.post(f"{_ONE}/items", openapi_extra=posting(ItemsBody, ConversationItems))
    async def create_items(request: Request, conversation_id: str) -> Response:
        """Add items to a conversation."""
        asked, tenant = await read_body(request, ItemsBody), caller_of(request).tenant
        await _found(request, store, conversation_id)
        items = stored_items(asked.items, request.state.request_id)
        ids = [item["id"] for item in items]
        _check_ids(items, await store.known(tenant, conversation_id, ids))
        if not await store.add(tenant, Added(conversation_id, items)):
            raise _missing(conversation_id)
        ends = {"first_id": ids[0], "last_id": ids[-1], "has_more": False}
        return _json({"object": "list", "data": items, **ends})

    @routes.get(
        f"{_ONE}/items",
        openapi_extra=getting(ConversationItems, Unauthorized, NotFound) | {"parameters": PARAMETERS},
    )
    async def list_items(request: Request, conversation_id: str) -> Response:
        """The items of a conversation."""
        tenant, hold = caller_of(request).tenant, request.state.body.grow

        async def ids(after: str | None, newest_first: bool) -> AsyncGenerator[str, None]:
            await _found(request, store, conversation_id)
            async with aclosing(store.ids(tenant, conversation_id, after, newest_first)) as found:
                async for one in found:
                    yield one

        return await answer_page(request, ids, partial(store.item, tenant, conversation_id, hold=hold))

    @routes.get(f"{_ONE}/items/{{item_id}}", openapi_extra=getting(ConversationItem, Unauthorized, NotFound))
    async def retrieve_item(request: Request, conversation_id: str, item_id: str) -> Response:
        """An item of a conversation."""
        tenant, hold = caller_of(request).tenant, request.state.body.grow
        item = await store.item(tenant, conversation_id, item_id, hold)
        if item is None:
            raise _missing_item(item_id)
        return _json(item)

    @routes.delete(f"{_ONE}/items/{{item_id}}", openapi_extra=getting(Conversation, Unauthorized, NotFound))
    async def delete_item(request: Request, conversation_id: str, item_id: str) -> Response:
        """Delete an item of a conversation. The answer is the conversation."""
        made = await _found(request, store, conversation_id)
        if not await store.remove(caller_of(request).tenant, conversation_id, item_id):
            raise _missing_item(item_id)
        return _json(made)


def _check_ids(items: Sequence[Json], known: Collection[str]) -> None:
    """Raises `BadRequest` for an id that two items have. `known`: ids that the conversation has."""
    ids = [item["id"] for item in items]
    if twice := [one for place, one in enumerate(ids) if one in known or one in ids[:place]]:
        message = f"'items': the conversation has an item with the id '{twice[0][:100]}'."
        raise BadRequest(message, param="items", code="invalid_value")


async def _found(request: Request, store: ConversationStore, conversation_id: str) -> Json:
    made = await store.get(caller_of(request).tenant, conversation_id)
    if made is None:
        raise _missing(conversation_id)
    return made


def _missing(conversation_id: str) -> NotFound:
    return NotFound(f"Conversation with id '{conversation_id[:100]}' not found.", param="conversation_id")


def _missing_item(item_id: str) -> NotFound:
    return NotFound(f"Item with id '{item_id[:100]}' not found.", param="item_id")


def _json(value: Json) -> Response:
    return Response(compact(value), media_type="application/json")
