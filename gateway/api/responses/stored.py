"""Responses that were stored: going on from them, and the endpoints that show and delete them."""

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from pydantic import TypeAdapter

from gateway.api.common.answers import Json, compact
from gateway.api.common.fields import MAX_MESSAGES
from gateway.api.common.listing import PARAMETERS, answer_page
from gateway.api.messages.items import Item, ItemReference
from gateway.api.responses.answer_schema import (
    RESPONSE_EVENTS,
    DeletedResponse,
    InputItems,
    ResponseAnswer,
)
from gateway.api.responses.background import ENDED, LAST_EVENT_ID, Background, seen_by
from gateway.api.responses.schema import ResponsesBody
from gateway.errors import BadRequest, NotFound, Unauthorized
from gateway.http.body_memory import Held
from gateway.http.caller import caller_of
from gateway.http.openapi import getting
from gateway.parsing import parsed_each
from gateway.upstream.listed import not_listed
from gateway.upstream.response_store import ResponseStore

MAX_LOOKED_UP = 32
"""Responses that the item references of one request may lead to."""

_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]{32})_\w+")
"""An item's id names the response with which it came."""
_ITEM: TypeAdapter[Item] = TypeAdapter(Item)
_STREAM_PARAMETERS: list[Json] = [
    {"name": "stream", "in": "query", "schema": {"type": "boolean", "default": False}},
    {
        "name": "starting_after",
        "in": "query",
        "description": "Events after this `sequence_number`.",
        "schema": {"type": "integer", "minimum": 0},
    },
    {
        "name": LAST_EVENT_ID,
        "in": "header",
        "description": "Events after the one with this id.",
        "schema": {"type": "string"},
    },
]


@dataclass(frozen=True)
class Items:
    """The items that the model is to see."""

    earlier: Sequence[Item]
    """Those of earlier responses, or of the conversation."""
    own: Sequence[Item]
    """The request's."""

    @property
    def all(self) -> list[Item]:
        return [*self.earlier, *self.own]


NO_ITEMS = Items((), ())


async def items_of(request: Request, asked: ResponsesBody, store: ResponseStore | None) -> Items:
    """The items that a request is about.

    Raises `BadRequest` for a response or an item that is not stored, and `NotFound` for a conversation.
    """
    if asked.conversation and asked.previous_response_id:
        message = "'conversation' has the earlier responses: it does not go with 'previous_response_id'."
        raise BadRequest(message, param="conversation", code="mutually_exclusive_parameters")
    earlier: list[Item] = []
    if asked.conversation:
        earlier = await _conversation(request, asked, store)
    elif asked.previous_response_id:
        earlier = await _previous(request, asked, store)
    references = [item.id for item in asked.input if isinstance(item, ItemReference)]
    known = await _referenced(request, references, store)
    own = [known[item.id] if isinstance(item, ItemReference) else item for item in asked.input]
    return Items(earlier, own)


async def _conversation(request: Request, asked: ResponsesBody, store: ResponseStore | None) -> list[Item]:
    name, texts = asked.conversation, None
    if store is not None:
        texts = await store.conversations.items(caller_of(request).tenant, name)
    if texts is None:
        raise NotFound(f"Conversation with id '{name[:100]}' not found.", param="conversation")
    _check_count(texts, asked, "conversation")
    size = sum(map(len, texts))
    held: Held = request.state.body
    held.grow(size)
    return await parsed_each(held.tenant, size, _ITEM.validate_json, texts)


async def _previous(request: Request, asked: ResponsesBody, store: ResponseStore | None) -> list[Item]:
    name = asked.previous_response_id
    record = await _record(request, name, store)
    if record is None:
        message = f"Previous response with id '{name[:100]}' not found."
        raise BadRequest(message, param="previous_response_id", code="previous_response_not_found")
    if record["response"]["status"] not in ENDED:
        message = f"Previous response with id '{name}' is not complete."
        raise BadRequest(message, param="previous_response_id", code="previous_response_not_complete")
    _check_count(_parts(record), asked, "previous_response_id")
    return await _all_items(request, record)


def _check_count(earlier: Sequence[object], asked: ResponsesBody, name: str) -> None:
    """Raises `BadRequest` if there are too many items. `name`: the parameter that names the earlier ones."""
    if len(earlier) + len(asked.input) > MAX_MESSAGES:
        message = (
            f"'{name}' has {len(earlier)} items: with the {len(asked.input)} of 'input' that is more than "
        )
        raise BadRequest(f"{message}{MAX_MESSAGES}.", param=name, code="invalid_value")


async def _referenced(request: Request, ids: Sequence[str], store: ResponseStore | None) -> dict[str, Item]:
    found: dict[str, Item] = {}
    looked_up = 0
    # A later response usually has the items of the earlier ones.
    for item_id in reversed(ids):
        if item_id in found:
            continue
        if looked_up == MAX_LOOKED_UP:
            message = f"'input': its references lead to more than {MAX_LOOKED_UP} responses."
            raise BadRequest(message, param="input", code="invalid_value")
        looked_up += 1
        match = _ITEM_ID.fullmatch(item_id)
        record = await _record(request, f"resp_{match[1]}", store) if match else None
        items = await _all_items(request, record) if record else ()
        found |= {item.id: item for item in items if item.id}
        if item_id not in found:
            message = f"Item with id '{item_id[:100]}' not found."
            raise BadRequest(message, param="input", code="invalid_value")
    return found


async def _record(request: Request, response_id: str, store: ResponseStore | None) -> Json | None:
    """A record of the caller's; None if there is none. It counts as part of the request's body."""
    if store is None:
        return None
    return await store.get(caller_of(request).tenant, response_id, request.state.body.grow)


def _parts(record: Json) -> list[Json]:
    """Its items."""
    return [*record["input"], *record["response"]["output"]]


async def _all_items(request: Request, record: Json) -> list[Item]:
    held: Held = request.state.body
    return await parsed_each(held.tenant, held.size, _ITEM.validate_python, _parts(record))


def router(store: ResponseStore | None, background: Background | None) -> APIRouter:
    routes = APIRouter()
    _add_reading(routes, store, background)
    _add_changing(routes, store, background)
    return routes


def _add_reading(routes: APIRouter, store: ResponseStore | None, background: Background | None) -> None:
    @routes.get(
        "/v1/responses/{response_id}",
        openapi_extra=getting(ResponseAnswer, Unauthorized, NotFound, events=RESPONSE_EVENTS)
        | {"parameters": _STREAM_PARAMETERS},
    )
    async def retrieve_response(request: Request, response_id: str) -> Response:
        """A stored response; or its events, those to come too, if it is made in the background."""
        after = _events_after(request, response_id)
        response = (await _found(request, store, response_id))["response"]
        if after is None:
            return _json(response)
        if background is None or not response["background"]:
            message = "'stream': this response was not made in the background."
            raise BadRequest(message, param="stream", code="unsupported_parameter")
        return await background.follow(request, response, after)

    @routes.get(
        "/v1/responses/{response_id}/input_items",
        openapi_extra=getting(InputItems, Unauthorized, NotFound) | {"parameters": PARAMETERS},
    )
    async def list_input_items(request: Request, response_id: str) -> Response:
        """The items before a stored response."""
        items: dict[str, Json] = {}

        async def ids(after: str | None, newest_first: bool) -> AsyncGenerator[str, None]:
            items.update((item["id"], item) for item in (await _found(request, store, response_id))["input"])
            found = list(reversed(items) if newest_first else items)
            if after is not None and after not in items:
                raise not_listed(after)
            for one in found[found.index(after) + 1 if after is not None else 0 :]:
                yield one

        async def wanted(item_id: str) -> Json:
            return items[item_id]

        return await answer_page(request, ids, wanted)


def _add_changing(routes: APIRouter, store: ResponseStore | None, background: Background | None) -> None:
    @routes.post(
        "/v1/responses/{response_id}/cancel", openapi_extra=getting(ResponseAnswer, Unauthorized, NotFound)
    )
    async def cancel_response(request: Request, response_id: str) -> Response:
        """End a response that is made in the background."""
        if background is None:
            raise _missing(response_id)
        return _json(await background.cancel(request, response_id))

    @routes.delete(
        "/v1/responses/{response_id}", openapi_extra=getting(DeletedResponse, Unauthorized, NotFound)
    )
    async def delete_response(request: Request, response_id: str) -> Response:
        """Delete a stored response."""
        if not (store and await store.delete(caller_of(request).tenant, response_id)):
            raise _missing(response_id)
        return _json({"id": response_id, "object": "response", "deleted": True})


async def _found(request: Request, store: ResponseStore | None, response_id: str) -> Json:
    record = await _record(request, response_id, store)
    if record is None:
        raise _missing(response_id)
    return record


def _events_after(request: Request, response_id: str) -> int | None:
    """The number of the event after which the client wants a response's events; None if it wants none.

    Raises `BadRequest`."""
    asked = request.query_params
    stream, after = asked.get("stream", "false"), asked.get("starting_after")
    if stream not in ("true", "false"):
        raise BadRequest("'stream' must be true or false.", param="stream", code="invalid_value")
    if after is not None and (stream == "false" or not re.fullmatch("[0-9]{1,9}", after)):
        message = "'starting_after' is the number of an event, and goes with 'stream=true'."
        raise BadRequest(message, param="starting_after", code="invalid_value")
    if stream == "false":
        return None
    seen, number = seen_by(request), -1 if after is None else int(after)
    if seen is not None and seen[0] == response_id:
        number = max(number, seen[1])  # a browser repeats its first request, and adds the header
    return number


def _missing(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{response_id[:100]}' not found.", param="id")


def _json(value: Json) -> Response:
    return Response(compact(value), media_type="application/json")
