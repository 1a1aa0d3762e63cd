"""`quire status`: what runs, and how it is."""

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any

import httpx
from redis.exceptions import RedisError

from ops.launcher.record import Deployment, recorded
from ops.runtime.address import without_password
from ops.runtime.leases import Leases
from ops.runtime.settings import named_redis
from proto.rpc import Lease

_DESCRIPTION = """\
Show the deployments that `quire up` has started on this machine: every process with its id,
and what it says of itself. With QUIRE_REDIS_URL set and none of those running, the processes
that share that Redis, wherever they run.

Exit status: 0 if all of them are ready, else 1.
"""


def add_to(subcommands: Any) -> None:
    status = subcommands.add_parser(
        "status",
        help="show what runs",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    status.set_defaults(run=lambda arguments: asyncio.run(run()))


async def run() -> int:
    deployments = recorded()
    if not deployments:
        return await _show_redis()
    ready = [await _show(deployment) for deployment in deployments]
    return 0 if all(ready) else 1


async def _show(deployment: Deployment) -> bool:
    """Print one deployment; whether it is ready."""
    if not deployment.launcher.alive():
        print(f"{deployment.url}  {deployment.model}  not running (`quire down` cleans up)")
        return False
    ready = await _ready(deployment.url)
    print(f"{deployment.url}  {deployment.model}  {'ready' if ready else 'NOT READY'}")
    holders = await _holders(deployment.redis_url, deployment.stream_prefix)
    with_lease = {holder.pid for holder in holders}
    others = [
        (name, "no lease" if process.alive() and name != "redis" else "-", str(process.pid), "", "", "")
        for name, process in deployment.processes.items()
        if process.pid not in with_lease
    ]
    launcher = ("launcher", "-", str(deployment.launcher.pid), "", "", "")
    _print_table([*(_row(holder) for holder in holders), *others, launcher])
    return ready


async def _show_redis() -> int:
    """Print the processes with a lease in the environment's Redis; 0 if no service is missing."""
    url = named_redis()
    if url is None:
        print("nothing runs; start it with `quire up`")
        return 1
    holders = await _holders(url, os.environ.get("QUIRE_STREAM_PREFIX", "quire:"))
    print(without_password(url))
    _print_table([_row(holder) for holder in holders])
    return 0 if _whole(holders) else 1


def _whole(holders: Sequence[Lease]) -> bool:
    """Whether there is a process of each service that speaks one protocol."""
    services: dict[int, set[str]] = {}
    for one in holders:
        services.setdefault(one.protocol, set()).add(one.service)
    return any({"gateway", "tokenizer", "scheduler", "worker"} <= found for found in services.values())


async def _holders(url: str, prefix: str) -> list[Lease]:
    leases = Leases(url, prefix)
    try:
        return await leases.holders()
    except (RedisError, OSError) as error:
        print(f"  Redis at {without_password(url)} is unreachable: {error}")
        return []
    finally:
        await leases.aclose()


async def _ready(url: str) -> bool:
    try:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            return (await client.get(f"{url}/health/ready")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _row(holder: Lease) -> tuple[str, ...]:
    info = " ".join(f"{key}={value}" for key, value in holder.info.items() if value != "")
    epoch, protocol = str(holder.epoch), str(holder.protocol)
    return holder.service, holder.process_id, str(holder.pid), epoch, protocol, info


def _print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns as wide as they need."""
    table = [("SERVICE", "ID", "PID", "EPOCH", "PROTOCOL", "INFO"), *rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        print(f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip())
