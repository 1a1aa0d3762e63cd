"""Keys of requests in Redis: whose they are, and which answers go when there are too many."""

import asyncio
import hashlib
from contextlib import aclosing
from dataclasses import replace

import pytest

from gateway import redis_replies
from gateway.errors import BadRequest, Overloaded, Unavailable
from gateway.followers import Followers
from gateway.http import claims as store
from gateway.http.claims import ENTRY_BYTES, HEAD, KEYS_BYTES, PIECE, Claim, ClaimLost, Claims
from gateway.http.idempotent import PIECE_BYTES
from proto.rpc import BusAway
from proto.rpc.line import Line

SIZE = KEYS_BYTES + 2 * ENTRY_BYTES + 101
"""What an answer takes that is made here."""


@pytest.fixture
def claims(redis_url: str, line: Line, prefix: str) -> Claims:
    return Claims(lambda: Line(redis_url), line, prefix, seconds=600, all_bytes=3 * SIZE)


async def begun(claims: Claims, key: str, tenant: str = "t", size: int = 100) -> Claim:
    claim = await claims.take(tenant, key, "print")
    assert claim.own
    assert await claim.keep([(HEAD, b"h"), (PIECE, b"x" * size)]) is not None
    return claim


async def answered(claims: Claims, key: str, tenant: str = "t", size: int = 100) -> Claim:
    claim = await begun(claims, key, tenant, size)
    await claim.complete()
    return claim


async def free(claims: Claims, *keys: str, tenant: str = "t") -> list[bool]:
    """Of each key, whether it is. Each is taken by that."""
    return [(await claims.take(tenant, key, "print")).own for key in keys]


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
    await first.complete()
    assert await reading == b"h12"
    assert await read(await claims.take("t", "k", "print")) == b"h12"
    assert await first.keep([(PIECE, b"3")]) is None, "it is complete"


class Broken(Line):
    """Loses every command once before it takes effect, and once its reply."""

    count = 0

    async def execute(self, *commands, block_seconds=0):  # type: ignore[no-untyped-def]
        self.count += 1
        if self.count % 3 == 1:
            raise BusAway("lost on the way")
        replies = await super().execute(*commands, block_seconds=block_seconds)
        if self.count % 3 == 2:
            raise BusAway("the reply is lost")
        return replies


async def test_an_answer_outlasts_lost_connections(
    claims: Claims, redis_url: str, line: Line, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_replies, "AGAIN_SECONDS", 0.01)
    whole = await claims.take("t", "k", "print")
    broken = Claims(lambda: Broken(redis_url), Broken(redis_url), prefix, seconds=600, all_bytes=3 * SIZE)
    claim = replace(whole, _claims=broken)
    follower = replace(whole, _claims=replace(broken, line=Broken(redis_url)))
    reading = asyncio.ensure_future(read(follower))
    await claim.keep([(HEAD, b"h"), (PIECE, b"x" * 50)])
    await claim.keep([(PIECE, b"y" * 50)])
    await claim.complete()
    answer = b"h" + b"x" * 50 + b"y" * 50
    assert await reading == await read(whole) == answer
    counted = (await line.execute(("HGET", f"{prefix}claims:sizes", "")))[0]
    assert int(counted) == KEYS_BYTES + 3 * ENTRY_BYTES + len(answer), "each entry once"
    broken.line.close()
    follower._claims.line.close()


async def test_a_redis_that_stays_away_ends_an_answer(
    claims: Claims, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LEASE_SECONDS", 0.2)
    monkeypatch.setattr(redis_replies, "AGAIN_SECONDS", 0.01)
    away = Line("redis://127.0.0.1:1/0")
    claim = replace(await claims.take("t", "k", "print"), _claims=replace(claims, line=away))
    with pytest.raises(Unavailable):
        await claim.keep([(HEAD, b"h")])


async def test_a_claim_whose_reply_is_lost_is_the_caller_s(
    claims: Claims, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_replies, "AGAIN_SECONDS", 0.01)
    broken = replace(claims, line=Broken(redis_url))
    assert (await broken.take("t", "k", "print")).own
    assert broken.line.count == 3, "it was lost on the way, and then its reply"  # type: ignore[attr-defined]
    assert not (await broken.take("t", "k", "print")).own
    with pytest.raises(BadRequest):
        await broken.take("t", "k", "other")
    broken.line.close()


class Mute(Line):
    """Does what it is told, and gives no reply while it is `broken`."""

    broken = True

    async def execute(self, *commands, block_seconds=0):  # type: ignore[no-untyped-def]
        replies = await super().execute(*commands, block_seconds=block_seconds)
        if self.broken:
            raise BusAway("the reply is lost")
        return replies


async def test_a_request_that_comes_again_takes_the_claim_it_has_left(
    claims: Claims, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_replies, "AGAIN_SECONDS", 0)
    monkeypatch.setattr(store, "MOST_UNANSWERED", 2)
    mute = Mute(redis_url)
    broken = replace(claims, line=mute, _unanswered={})
    for key in ("forgotten", "k", "cancelled"):
        taking = asyncio.ensure_future(broken.take("t", key, "print"))
        while (await claims.line.execute(("EXISTS", of(claims, key))))[0] == 0:
            await asyncio.sleep(0)
        taking.cancel()
        assert isinstance((await asyncio.gather(taking, return_exceptions=True))[0], asyncio.CancelledError)
    mute.broken = False
    with pytest.raises(BadRequest):
        await broken.take("t", "k", "another request")
    assert not (await claims.take("t", "k", "print")).own, "another gateway waits"
    assert await free(broken, "k", "cancelled", "forgotten") == [True, True, False]
    assert await free(broken, "k", "cancelled") == [False, False], "it is taken once"
    mute.close()


def of(claims: Claims, key: str) -> str:
    return f"{claims.prefix}claims:of:t:{hashlib.sha256(key.encode()).hexdigest()}"


async def test_a_claim_that_is_asked_for_again_lasts_anew(claims: Claims, line: Line, prefix: str) -> None:
    claim = await claims.take("t", "k", "print")
    kept = f"{prefix}claims:of:{claim._key}"
    await line.execute(("PEXPIRE", kept, 1000))  # after most of its time a reply has come at last
    assert await claim.run(store._TAKE, store.LEASE_SECONDS, "print") == [b"print", claim._owner.encode()]
    assert (await line.execute(("PTTL", kept)))[0] > 5000
    await line.execute(("PEXPIRE", kept, 1000))
    await claims.take("t", "k", "print")
    assert (await line.execute(("PTTL", kept)))[0] <= 1000, "another one does not make it last"


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


async def counted(line: Line, prefix: str) -> dict[str, int]:
    """Bytes that are counted of all tenants, in the entry '' together."""
    all_, tenants = await line.execute(
        ("HGET", f"{prefix}claims:sizes", ""), ("ZRANGE", f"{prefix}claims:tenants", 0, -1, "WITHSCORES")
    )
    by_tenant = zip(tenants[::2], tenants[1::2], strict=True)
    return {"": int(all_), **{tenant.decode(): int(float(size)) for tenant, size in by_tenant}}


async def test_beyond_the_room_the_oldest_answers_go(claims: Claims, line: Line, prefix: str) -> None:
    for number in range(4):
        await answered(claims, f"k{number}")
    assert await counted(line, prefix) == {"": claims.all_bytes, "t": claims.all_bytes}
    assert await free(claims, "k0", "k1", "k2", "k3") == [True, False, False, False]


async def test_answers_go_of_the_tenant_that_has_most(claims: Claims, line: Line, prefix: str) -> None:
    await answered(claims, "k0", "2001:db8::/64")
    for number in range(4):
        await answered(claims, f"k{number}")
    assert await free(claims, "k0", tenant="2001:db8::/64") == [False]
    assert await counted(line, prefix) == {"": 3 * SIZE, "t": 2 * SIZE, "2001:db8::/64": SIZE}
    assert await free(claims, "k0", "k1", "k2", "k3") == [True, True, False, False]


async def test_answers_under_way_are_counted_and_go_last(claims: Claims, line: Line, prefix: str) -> None:
    first, second = await begun(claims, "k0"), await begun(claims, "k1")
    done = await answered(claims, "k2")
    third = await begun(claims, "k3")
    with pytest.raises(ClaimLost):
        await read(done)
    assert await counted(line, prefix) == {"": 3 * SIZE, "t": 3 * SIZE}
    assert await third.keep([]) is not None, "nothing more takes nothing more"
    last = await begun(claims, "k4", "u")
    left = [await claim.keep([]) is not None for claim in (first, second, third)]
    assert (sum(left), await counted(line, prefix)) == (2, {"": 3 * SIZE, "t": 2 * SIZE, "u": SIZE})
    for claim in (first, second, third, last):
        await claim.drop()
    (keys,) = await line.execute(("KEYS", f"{prefix}*"))
    assert keys == [f"{prefix}claims:sizes".encode()]
    assert await counted(line, prefix) == {"": 0}


async def test_an_answer_without_room_is_not_kept(claims: Claims, line: Line, prefix: str) -> None:
    claim = await begun(claims, "k")
    assert await claim.keep([(PIECE, b"x" * claims.all_bytes)]) is None
    await claim.complete()
    assert await free(claims, "k") == [True]
    assert await counted(line, prefix) == {"": 0}


async def test_the_answer_of_a_gateway_that_has_died_is_not_counted(
    claims: Claims, line: Line, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LEASE_SECONDS", 0.5)
    await begun(claims, "k0")
    monkeypatch.undo()
    await asyncio.sleep(0.6)
    await begun(claims, "k1")
    assert await counted(line, prefix) == {"": SIZE, "t": SIZE}


async def test_what_answers_take_in_redis_is_what_is_counted(redis_url: str, line: Line, prefix: str) -> None:
    claims = Claims(lambda: Line(redis_url), line, prefix, seconds=600, all_bytes=2**24)
    made = []
    for number in range(200):
        made.append(await begun(claims, f"k{number}", size=(14, 5000, PIECE_BYTES)[number % 3]))
        for _ in range(number % 40):
            await made[-1].keep([(PIECE, b"x" * 200)] * 4)
    names = [*(f"of:{one._key}" for one in made), *(f"answer:{one._key}:{one._owner}" for one in made)]
    names += ["sizes", "ends", "tenants", "tenant:t"]
    used = await line.execute(*(("MEMORY", "USAGE", f"{prefix}claims:{name}") for name in names))
    size = (await counted(line, prefix))[""]
    assert size / 2 < sum(used) <= size


async def test_no_more_wait_than_may(claims: Claims) -> None:
    claims = replace(claims, followers=Followers(0))
    await claims.take("t", "k", "print")
    with pytest.raises(Overloaded):
        await read(await claims.take("t", "k", "print"))
    await answered(claims, "done")
    assert await read(await claims.take("t", "done", "print")) == b"h" + b"x" * 100


async def test_who_does_not_wait_any_more_leaves_its_place(claims: Claims, redis_url: str) -> None:
    own = Line(redis_url)
    claims = replace(claims, connect=lambda: own)
    await begun(claims, "k")
    async with aclosing((await claims.take("t", "k", "print")).entries()) as entries:
        await anext(entries)
        await anext(entries)
        waiting = asyncio.ensure_future(anext(entries))
        async with asyncio.timeout(60):
            while own.connection is None:
                await asyncio.sleep(0.01)
        assert len(claims.followers) == 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert not len(claims.followers)
    assert not own.connection.open_still
