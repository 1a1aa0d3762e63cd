"""Verdicts in Redis: who can make one, and a Redis that is slow, away, full of other things or denying."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from ops.bench.robust.proxy import Proxy
from ops.launcher.acl import Credentials
from ops.launcher.redis_server import RedisServer
from proto.rpc.line import Line
from proto.rpc.seal import Seal
from tokenizer_svc.grammars import shared_verdicts as module
from tokenizer_svc.grammars.shared_verdicts import NAME_BYTES, RedisVerdicts
from tokenizer_svc.grammars.verdicts import MOST_CHARACTERS, PASSING_SECONDS, Verdict

NAME, OTHER = b"a" * NAME_BYTES, b"b" * NAME_BYTES
GOOD = Verdict(text="start: /a/")
SECRET, NO_SECRET = Seal(b"secret"), Seal()
USERS = Credentials()


def slow() -> Verdict:
    """It holds from now on, and not for long."""
    return Verdict(reason="too slow", granted=0.25)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine's Redis has not failed."""
    monkeypatch.setattr(module, "WAIT_SECONDS", 60.0)


async def key_of(line: Line, prefix: str) -> str:
    """The one key that there is."""
    ((key,),) = await line.execute(("KEYS", f"{prefix}*"))
    return str(key.decode())


async def test_replicas_find_what_one_of_them_has_put(line: Line, prefix: str) -> None:
    one, other = (RedisVerdicts(line.another(), prefix, SECRET) for _ in range(2))
    assert await other.get(NAME) is None
    await one.put(NAME, GOOD)
    assert await other.get(NAME) == GOOD
    assert await RedisVerdicts(line, f"{prefix}x:", SECRET).get(NAME) is None, "another deployment"


async def test_redis_forgets_it_in_time(line: Line, prefix: str) -> None:
    for verdict, least, most in ((slow(), 0, PASSING_SECONDS), (GOOD, 1000 * PASSING_SECONDS, 86_400)):
        await RedisVerdicts(line, prefix, SECRET).put(NAME, verdict)
        (left,) = await line.execute(("PTTL", await key_of(line, prefix)))
        assert 1000 * least < left <= 1000 * most


async def test_large_ones_are_left_out(line: Line, prefix: str) -> None:
    store = RedisVerdicts(line, prefix, SECRET)
    await store.put(NAME, Verdict(text="a" * module.MOST_BYTES))
    assert await store.get(NAME) is None
    await store.put(NAME, Verdict(text="a" * (module.MOST_BYTES - 200)))
    assert await store.get(NAME) is not None


async def test_half_a_character_is_not_shared(line: Line, prefix: str) -> None:
    store = RedisVerdicts(line, prefix, SECRET)
    await store.put(NAME, Verdict.model_construct(text="\ud800", reason="", granted=0.0, until=GOOD.until))
    assert await store.get(NAME) is None


async def test_nobody_makes_one_without_the_secret(
    line: Line, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = RedisVerdicts(line, prefix, SECRET)
    for seal in (NO_SECRET, Seal(b"another")):
        await RedisVerdicts(line, prefix, seal).put(NAME, GOOD)
        assert await store.get(NAME) is None
        assert "holds no verdict of this deployment" in caplog.text
        caplog.clear()
    await store.put(NAME, GOOD)
    assert await store.get(NAME) == GOOD


async def test_one_that_is_copied_or_changed_is_none(line: Line, prefix: str) -> None:
    store = RedisVerdicts(line, prefix, SECRET)
    await store.put(NAME, GOOD)
    key = await key_of(line, prefix)
    (entry,) = await line.execute(("GET", key))
    await store.put(OTHER, slow())
    ((first, second),) = await line.execute(("KEYS", f"{prefix}*"))
    other = (first if second.decode() == key else second).decode()
    await line.execute(("SET", other, entry))
    await line.execute(("SET", key, entry.replace(b"/a/", b"/b/")))
    assert await store.get(NAME) is None
    assert await store.get(OTHER) is None


async def test_anything_else_in_its_place_is_none(line: Line, prefix: str) -> None:
    """Without a secret, too, what cannot be read is no verdict, and not a failure of the request."""
    store = RedisVerdicts(line, prefix, NO_SECRET)
    await store.put(NAME, GOOD)
    key, json = await key_of(line, prefix), GOOD.model_dump_json().encode()
    for value in (
        *(b"", b"x", NAME, OTHER + json, NAME + b"{", NAME + b"[]", NAME + b'{"text": 1}', NAME + b"\xff"),
        NAME + b'{"text": "a", "until": 1e999}',
        NAME + b'{"text": "a", "strange": 1}',
        NAME + Verdict(reason="a" * MOST_CHARACTERS).model_dump_json().replace("a", "aa").encode(),
        NAME + json + b" " * (2 * module.MOST_BYTES),
    ):
        await line.execute(("SET", key, value))
        assert await store.get(NAME) is None, value
    await line.execute(("SET", key, NAME + json))
    assert await store.get(NAME) == GOOD


@pytest.fixture
async def silent() -> AsyncIterator[Line]:
    """A connection to a server that greets as Redis does, and answers nothing after that."""
    connections: list[asyncio.StreamWriter] = []

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        await reader.readline()
        writer.write(b"+PONG\r\n:1\r\n$0\r\n\r\n$0\r\n\r\n")

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    yield Line(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    for connection in connections:
        connection.close()
    server.close()


async def test_a_redis_that_does_not_answer_is_left_alone_for_a_while(
    silent: Line, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(module, "PAUSE_SECONDS", 3600.0)
    store = RedisVerdicts(silent, "p:", SECRET)
    assert await store.get(NAME) is None
    monkeypatch.setattr(module, "WAIT_SECONDS", 3600.0)  # so that whoever waits once more hangs
    await store.put(NAME, GOOD)
    assert await store.get(NAME) is None
    assert caplog.text.count("Redis takes too long") == 1


async def test_it_is_asked_again_after_that(
    silent: Line, monkeypatch: pytest.MonkeyPatch, line: Line, prefix: str
) -> None:
    """On a new connection: the old one may be one that nobody answers any more."""
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    store = RedisVerdicts(silent, prefix, SECRET)
    assert await store.get(NAME) is None
    monkeypatch.setattr(module, "WAIT_SECONDS", 60.0)
    silent._place = line._place  # it answers again
    await store.put(NAME, GOOD)
    assert await store.get(NAME) == GOOD


async def test_connecting_may_take_longer_than_anybody_waits(
    redis_url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far from Redis, where a connection takes several round trips, and a question one."""
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    async with Proxy(redis_url) as proxy:
        far = Line(proxy.url)
        proxy.silence()
        monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
        store = RedisVerdicts(far, prefix, SECRET)
        assert await store.get(NAME) is None
        proxy.mend()
        async with asyncio.timeout(60):
            while far.connection is None:
                await asyncio.sleep(0.01)
        monkeypatch.setattr(module, "WAIT_SECONDS", 60.0)
        await store.put(NAME, GOOD)
        assert await store.get(NAME) == GOOD
        far.close()


async def test_a_redis_that_is_away_is_no_failure() -> None:
    store = RedisVerdicts(Line("redis://127.0.0.1:1"), "p:", SECRET)
    await store.put(NAME, GOOD)
    assert await store.get(NAME) is None


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(users=USERS.acl_file("quire:")) as server:
        yield server


async def test_the_tokenizer_s_user_may_and_others_may_not(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    for role, may in (("tokenizer", True), ("gateway", False), ("scheduler", False), ("worker", False)):
        line = Line(USERS.url(role, server.address))
        store = RedisVerdicts(line, "quire:", SECRET)
        await store.put(NAME, GOOD)
        assert await store.get(NAME) == (GOOD if may else None)
        assert ("NOPERM" in caplog.text) is not may
        line.close()
