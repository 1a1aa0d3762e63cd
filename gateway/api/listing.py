"""Lists of OpenAI's API that come page by page."""

import re
from collections.abc import Awaitable, Callable

from starlette.datastructures import QueryParams

from gateway.api.answer import Json
from gateway.errors import BadRequest

MAX_LISTED = 100

PARAMETERS: list[Json] = [
    {
        "name": "limit",
        "in": "query",
        "schema": {"type": "integer", "minimum": 1, "maximum": MAX_LISTED, "default": 20},
    },
    {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"], "default": "desc"}},
    {"name": "after", "in": "query", "schema": {"type": "string"}},
]
"""What such a list is asked with."""


async def page_of(
    asked: QueryParams,
    ids: Callable[[], Awaitable[list[str]]],
    get: Callable[[str], Awaitable[Json | None]],
) -> Json:
    """A page of things. `ids`: of all, the oldest first. `get`: one of them; None if it is gone.

    Raises `BadRequest`.
    """
    limit, order = asked.get("limit", "20"), asked.get("order", "desc")
    if not (re.fullmatch("[0-9]{1,5}", limit) and int(limit) >= 1):
        raise BadRequest(f"'limit' must be in [1, {MAX_LISTED}].", param="limit", code="invalid_value")
    if order not in ("asc", "desc"):
        raise BadRequest("'order' must be asc or desc.", param="order", code="invalid_value")
    rest = await ids()
    if order == "desc":
        rest = rest[::-1]
    if (after := asked.get("after")) is not None:
        if after not in rest:
            message = f"'after': there is no '{after[:100]}'."
            raise BadRequest(message, param="after", code="invalid_value")
        rest = rest[rest.index(after) + 1 :]
    page: list[Json] = []
    most = min(int(limit), MAX_LISTED)
    while rest and len(page) < most:
        if (one := await get(rest[0])) is not None:
            page.append(one)
        rest = rest[1:]
    ends = [page[0]["id"], page[-1]["id"]] if page else [None, None]
    return {"object": "list", "data": page, "first_id": ends[0], "last_id": ends[1], "has_more": bool(rest)}
