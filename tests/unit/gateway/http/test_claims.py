"""Keys of requests in Redis: whose they are, and which answers go when there are too many."""

import asyncio

import pytest

from gateway.errors import BadRequest, Overloaded
from gateway.http import claims as store
from gateway.http.claims import HEAD, KEYS_BYTES, PIECE, Claim, ClaimLost, Claims
from proto.rpc.redis_bus import Line


@pytest.fixture
def claims(redis_url: str, line: Line, prefix: str) -> Claims:
    return Claims(lambda: Line(redis_url), line, prefix, seconds=600, all_bytes=3 * (100 + KEYS_BYTES))


async def answered(claims: Claims, key: str, size: int = 100, head: bytes = b"h") -> Claim:
    claim = await claims.take("t", key, "print")
    assert claim.own
    assert await claim.keep([(HEAD, head), (PIECE, b"x" * size)]) is not None
    await claim.complete(size)
    return claim


async def read(claim: Claim) -> bytes:
    return b"".join([value async for _, value in claim.entries()])


async def test_one_takes_a_key_and_others_find_it(claims: Claims) -> None:
    first = await claims.take("t", "k", "print")
    second = await claims.take("t", "k", "print")
    assert (first.own, second.own) == (True, False)
    with pytest.raises(BadRequest, match="Another request"):
        await claims.take("t", "k", "other")
    assert (await claims.take("u", "k", "other")).own
    reading = asyncio.ensure_future(read(second))
    await first.keep([(HEAD, b"h"), (PIECE, b"1")])
    await first.keep([(PIECE, b"2")])
    await first.complete(2)
    assert await reading == b"h12"
    assert await read(await claims.take("t", "k", "print")) == b"h12"
    assert await first.keep([(PIECE, b"3")]) is None, "it is complete"


async def test_a_key_that_is_dropped_is_free(claims: Claims) -> None:
    first = await claims.take("t", "k", "print")
    second = await claims.take("t", "k", "print")
    await first.keep([(HEAD, b"h")])
    await first.drop()
    with pytest.raises(ClaimLost):
        await read(second)
    again = await claims.take("t", "k", "print")
    assert again.own
    assert await first.keep([(PIECE, b"late")]) is None
    await first.drop()
    assert not (await claims.take("t", "k", "print")).own, "only its owner drops it"


async def test_beyond_the_room_the_oldest_answers_go(claims: Claims, line: Line, prefix: str) -> None:
    for number in range(4):
        await answered(claims, f"k{number}")
    free = [(await claims.take("t", f"k{number}", "print")).own for number in range(4)]
    assert free == [True, False, False, False]
    (counted, kept) = await line.execute(
        ("HGET", f"{prefix}claims:bytes", "all"), ("ZRANGE", f"{prefix}claims:all", 0, -1)
    )
    assert (int(counted), len(kept)) == (claims.all_bytes, 3)


async def test_what_answers_take_in_redis_is_what_is_counted(redis_url: str, line: Line, prefix: str) -> None:
    claims = Claims(lambda: Line(redis_url), line, prefix, seconds=600, all_bytes=2**24)
    sizes = (14, 5000) * 100
    made = [await answered(claims, f"k{number}", size, b"h" * 500) for number, size in enumerate(sizes)]
    names = ["all", *(f"of:{one._key}" for one in made), *(f"answer:{one._key}:{one._owner}" for one in made)]
    used = await line.execute(*(("MEMORY", "USAGE", f"{prefix}claims:{name}") for name in names))
    (counted,) = await line.execute(("HGET", f"{prefix}claims:bytes", "all"))
    assert int(counted) / 2 < sum(used) <= int(counted)


async def test_no_more_wait_than_may(claims: Claims, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_FOLLOWERS", 0)
    await claims.take("t", "k", "print")
    with pytest.raises(Overloaded):
        await read(await claims.take("t", "k", "print"))
    await answered(claims, "done")
    assert await read(await claims.take("t", "done", "print")) == b"h" + b"x" * 100


async def test_a_tenant_that_waits_leaves_places_to_others(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MAX_FOLLOWERS", 4)
    for _ in range(2):
        claims.follower("t")
    with pytest.raises(Overloaded):
        claims.follower("t")
    claims.follower("u")
    for _ in range(2):
        claims.leave("t")
    claims.follower("t")
