"""`quire record`: have the schedulers of this machine write down the last minutes."""

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from ops.cli.arguments import add_command
from ops.launcher.deployments import recorded
from ops.launcher.leases import Leases
from ops.runtime.settings import named_redis, stream_prefix
from proto.redis_url import without_password
from proto.rpc import Lease
from scheduler_svc.recording.recordings import files_of

_DESCRIPTION = """\
Have every scheduler that runs on this machine write what was planned and computed in the last
minutes into its directory for recordings, a file for each worker, and name the files. `quire replay`
reads them. Schedulers record if QUIRE_RECORDINGS names a directory. The files have the tokens of
prompts and answers in them.
"""
PATIENCE = 30.0
"""Seconds that a scheduler may take to write."""
LOOK_SECONDS = 0.1


def add_to(subcommands: Any) -> None:
    command = add_command(
        subcommands, "record", "write down what was planned and computed in the last minutes", _DESCRIPTION
    )
    command.set_defaults(run=lambda arguments: asyncio.run(run()))


async def run() -> int:
    found = [each for each in await _schedulers() if each.host == socket.gethostname()]
    recording = [each for each in found if each.info.get("recordings")]
    if not recording:
        why = "none records: start them with QUIRE_RECORDINGS=<directory>" if found else "none runs here"
        print(f"quire record: schedulers: {why}", file=sys.stderr)
        return 1
    return max([await _record(each) for each in recording])


async def _record(scheduler: Lease) -> int:
    """Have one scheduler write a file for each of its workers, and name them."""
    pid, directory = scheduler.pid, Path(str(scheduler.info["recordings"]))
    workers = scheduler.info.get("workers")
    if not isinstance(workers, int) or not workers:
        print(f"quire record: the scheduler of process {pid} has no worker", file=sys.stderr)
        return 1
    before = set(files_of(directory, pid))
    try:
        os.kill(pid, signal.SIGUSR1)
    except OSError as error:
        print(f"quire record: process {pid}: {error.strerror}", file=sys.stderr)
        return 1
    end = time.monotonic() + PATIENCE
    while len(new := sorted(set(files_of(directory, pid)) - before)) < workers:
        if time.monotonic() > end:
            print(f"quire record: process {pid} has written too little to {directory}", file=sys.stderr)
            return 1
        await asyncio.sleep(LOOK_SECONDS)
    for path in new:
        print(path)
    return 0


async def _schedulers() -> list[Lease]:
    """The schedulers of all deployments of this machine, or of the Redis that the environment names."""
    places = [(each.redis_url, each.stream_prefix) for each in recorded()]
    if (url := named_redis()) is not None:
        places.append((url, stream_prefix()))
    found: dict[str, Lease] = {}
    for url, prefix in places:
        leases = Leases(url, prefix)
        try:
            found |= {each.process_id: each for each in await leases.holders() if each.service == "scheduler"}
        except (RedisError, OSError) as error:
            print(f"quire record: Redis at {without_password(url)} is unreachable: {error}", file=sys.stderr)
        finally:
            await leases.aclose()
    return list(found.values())
