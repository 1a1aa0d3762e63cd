"""Keys in Redis: written, read, revoked; a record that nobody can read costs only itself."""

import secrets

import pytest

from ops.runtime.api_keys import Key, digest_of, new_secret
from ops.runtime.key_store import KeyStore
from ops.runtime.limits import Limits
from proto.rpc import BusAway
from proto.rpc.line import Line


async def test_keys_are_there_for_all_until_they_are_revoked(line: Line, prefix: str) -> None:
    store, other = KeyStore(line, prefix), KeyStore(line, prefix)
    assert await store.version() is None
    assert await store.read() == {}
    key = Key(name="laptop", tenant="north", created=5, expires=7.5, limits=Limits.parse("concurrency=2"))
    first, second = digest_of(new_secret()), digest_of(new_secret())
    await store.add(first, key)
    versions = [await other.version()]
    await store.add(second, Key(name="phone", tenant="north"))
    versions.append(await other.version())
    found = await other.read()
    assert found.keys() == {first, second}
    assert found[first] == key
    assert str(found[first].limits) == "concurrency=2", "and not the defaults of this version"
    await store.revoke([first])
    versions.append(await other.version())
    assert (await other.read()).keys() == {second}
    await store.revoke([second, "nothing"])
    versions.append(await other.version())
    assert await other.read() == {}
    assert len(set(versions)) == 4
    assert None not in versions


async def test_nothing_of_a_key_can_be_read_in_redis(line: Line, prefix: str) -> None:
    secret = new_secret()
    assert len(secret) > 40
    assert secret != new_secret()
    await KeyStore(line, prefix).add(digest_of(secret), Key(name="a", tenant="a"))
    (fields,) = await line.execute(("HGETALL", f"{prefix}keys"))
    assert secret[9:].encode() not in b" ".join(fields)


async def test_kept_keys_come_back(line: Line, prefix: str) -> None:
    store = KeyStore(line, prefix)
    await store.add("d1", Key(name="a", tenant="a"))
    records = await store.records()
    copy = KeyStore(line, f"{prefix}copy:")
    await copy.restore(records)
    assert await copy.read() == await store.read()
    await copy.restore({})
    assert await copy.version() is not None


async def test_a_record_that_cannot_be_read_is_no_key(
    line: Line, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = KeyStore(line, prefix)
    await store.add("good", Key(name="a", tenant="a"))
    for record in (b"{", b"{}", b'{"name": "a b", "tenant": "a"}', b"\xff"):
        await line.execute(("HSET", f"{prefix}keys", secrets.token_hex(4), record))
    assert (await store.read()).keys() == {"good"}
    assert caplog.text.count("cannot be read") == 4


async def test_away() -> None:
    store = KeyStore(Line("unix:///nowhere/redis.sock"), "x:")
    with pytest.raises(BusAway):
        await store.version()
