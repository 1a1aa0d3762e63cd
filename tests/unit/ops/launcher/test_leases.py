"""The leases of a deployment, as tools read them."""

import secrets

import redis.asyncio

from ops.launcher.leases import Leases
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
