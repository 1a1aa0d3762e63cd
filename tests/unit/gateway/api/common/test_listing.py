"""Pages of lists: what is on them, and that no more is looked at than they show."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from gateway.api.common.listing import MAX_LISTED, page_of
from gateway.errors import BadRequest

MANY = 10**9
GONE = {"3", "4"}


async def page(**asked: object) -> tuple[dict[str, Any], int]:
    """A page of many things, and how many were looked at."""
    looked_at = 0

    async def ids(after: str | None, newest_first: bool) -> AsyncGenerator[str, None]:
        nonlocal looked_at
        for number in range(int(after or 0) + 1, MANY):
            looked_at += 1
            yield str(-number if newest_first else number)

    async def get(one: str) -> dict[str, Any] | None:
        return None if one in GONE else {"id": one}

    query = QueryParams([(name, str(value)) for name, value in asked.items()])
    return await page_of(query, ids, get), looked_at


async def test_no_more_is_looked_at_than_the_page_needs() -> None:
    for limit in (1, 20, MAX_LISTED):
        found, looked_at = await page(limit=limit)
        assert (len(found["data"]), looked_at, found["has_more"]) == (limit, limit + 1, True)
    found, _ = await page(limit=MAX_LISTED + 1)
    assert len(found["data"]) == MAX_LISTED


async def test_what_is_gone_is_left_out() -> None:
    found, looked_at = await page(order="asc", limit=3)
    assert [one["id"] for one in found["data"]] == ["1", "2", "5"]
    assert (found["first_id"], found["last_id"], looked_at) == ("1", "5", 6)


async def test_a_page_begins_behind_another_and_may_be_the_last() -> None:
    found, _ = await page(order="asc", after=MANY - 3)
    assert ([one["id"] for one in found["data"]], found["has_more"]) == (
        [str(MANY - 2), str(MANY - 1)],
        False,
    )
    found, _ = await page(after=MANY - 1)
    assert found == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


@pytest.mark.parametrize("asked", [{"limit": 0}, {"limit": "x"}, {"order": "up"}])
async def test_what_is_refused(asked: dict[str, object]) -> None:
    with pytest.raises(BadRequest) as refused:
        await page(**asked)
    assert refused.value.param in asked
