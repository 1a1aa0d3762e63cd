"""Lists of OpenAI's API that come page by page."""

import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from fastapi import Request, Response
from starlette.datastructures import QueryParams

from gateway.api.common.answers import Json, compact
from gateway.errors import BadRequest
from gateway.parsing import parsed

USUAL = 20
"""Things of a page where a request does not say."""
MAX_LISTED = 100


def parameters(usual: int = USUAL, most: int = MAX_LISTED) -> list[Json]:
    """What a list is asked with. `usual`, `most`: as for `page_of`."""
    limits = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    return [
        {"name": "limit", "in": "query", "schema": limits},
        {"name": "order", "in": "query", "schema": {"enum": ["asc", "desc"], "default": "desc"}},
        {"name": "after", "in": "query", "schema": {"type": "string"}},
    ]


PARAMETERS = parameters()


async def answer_page(
    request: Request,
    ids: Callable[[str | None, bool], AsyncGenerator[str, None]],
    get: Callable[[str], Awaitable[Json | None]],
    usual: int = USUAL,
    most: int = MAX_LISTED,
) -> Response:
    """The page that a request asks for: see `page_of`."""
    page, held = await page_of(request.query_params, ids, get, usual, most), request.state.body
    text = await parsed(held.tenant, held.size, lambda: compact(page))
    return Response(text, media_type="application/json")


async def page_of(
    asked: QueryParams,
    ids: Callable[[str | None, bool], AsyncGenerator[str, None]],
    get: Callable[[str], Awaitable[Json | None]],
    usual: int = USUAL,
    most: int = MAX_LISTED,
) -> Json:
    """A page of things. `get`: one of them; None if it is gone.

    `ids`: those behind one or, for None, all; the newest first or the oldest. No more are taken than the page
    needs: `usual` things unless the request says how many, and `most` at most. Raises `BadRequest`, and what
    these raise.
    """
    limit, order = asked.get("limit", str(usual)), asked.get("order", "desc")
    if not (re.fullmatch("[0-9]{1,5}", limit) and int(limit) >= 1):
        raise BadRequest(f"'limit' must be in [1, {most}].", param="limit", code="invalid_value")
    if order not in ("asc", "desc"):
        raise BadRequest("'order' must be asc or desc.", param="order", code="invalid_value")
    page: list[Json] = []
    most, more = min(int(limit), most), False
    async with aclosing(ids(asked.get("after"), order == "desc")) as found:
        async for one in found:
            if more := len(page) == most:
                break
            if (thing := await get(one)) is not None:
                page.append(thing)
    ends = [page[0]["id"], page[-1]["id"]] if page else [None, None]
    return {"object": "list", "data": page, "first_id": ends[0], "last_id": ends[1], "has_more": more}
