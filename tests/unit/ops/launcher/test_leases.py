"""The leases of a deployment, as tools read them."""

import secrets
from pathlib import Path

import pytest
import redis.asyncio

from ops.launcher.acl import HEALTH
from ops.launcher.leases import Leases
from ops.launcher.redis_server import RedisServer, free_port
from ops.runtime.errors import LaunchError
from proto.rpc import Lease


async def test_keys_that_hold_no_lease_are_passed_over(redis_url: str) -> None:
    prefix = f"test-{secrets.token_hex(4)}:"
    good = Lease("w-1", "worker", 1)
    writer, leases = redis.asyncio.Redis.from_url(redis_url, socket_timeout=60), Leases(redis_url, prefix)
    await writer.set(f"{prefix}alive:w-1", good.encode())
    await writer.set(f"{prefix}alive:deep", b"[" * 100_000)
    await writer.rpush(f"{prefix}alive:list", "x")
    await writer.set(f"{prefix}alive:".encode() + b"\xff", good.encode())
    await writer.sadd(f"{prefix}processes", "w-1", "deep", "list", b"\xff", "gone")
    try:
        found = {lease.process_id: lease for lease in await leases.holders()}
        assert found["w-1"] == good
        assert set(found) == {"w-1"}
    finally:
        await leases.aclose()
        await writer.aclose()


@pytest.mark.parametrize(("user", "said"), [("", "NOAUTH"), (":wrong@", "WRONGPASS"), ("few:few@", "NOPERM")])
async def test_a_redis_that_denies_its_user_says_what_is_missing(
    user: str, said: str, tmp_path: Path
) -> None:
    users = f"{HEALTH}\nuser default on >right ~* &* +@all\nuser few on >few ~other:* &* +@all\n"
    with RedisServer(directory=tmp_path, port=(port := free_port()), users=users):
        leases = Leases(f"redis://{user}127.0.0.1:{port}/0", "fox:")
        with pytest.raises(LaunchError, match=rf"{said}.*; QUIRE_REDIS_URL must name a user.* fox:\*"):
            await leases.reachable()
        await leases.aclose()
