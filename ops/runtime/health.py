"""`python -m ops.runtime.health SERVICE`: exit status 0 if this machine's process of that service is well.

It is well if it holds a lease, and the gateway if it also answers HTTP. For the health checks of
containers, where a machine has one process.
"""

import asyncio
import os
import socket
import sys
import urllib.error
import urllib.request
from typing import NoReturn

from redis.exceptions import RedisError

from ops.runtime.address import url_from_here
from ops.runtime.leases import Leases
from ops.runtime.settings import ProcessSettings

SERVICES = ("gateway", "tokenizer", "scheduler", "worker")


async def problem_of(service: str, settings: ProcessSettings) -> str | None:
    """What is wrong with this machine's process of the service, in one line; None if nothing is."""
    leases = Leases(settings.redis_url, settings.stream_prefix)
    try:
        holders = await leases.holders()
    except (RedisError, OSError) as error:
        return f"Redis is unreachable: {error}"
    finally:
        await leases.aclose()
    host = socket.gethostname()
    if not any(holder.service == service and holder.host == host for holder in holders):
        return f"no {service} on {host} holds a lease"
    return _http_problem() if service == "gateway" else None


def _http_problem() -> str | None:
    host, port = os.environ.get("QUIRE_HOST", "127.0.0.1"), int(os.environ.get("QUIRE_PORT", "8000"))
    url = f"{url_from_here(host, port)}/health/live"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=3):
            return None
    except (urllib.error.URLError, OSError) as error:
        return f"{url}: {error}"


def main() -> NoReturn:
    if len(sys.argv) != 2 or sys.argv[1] not in SERVICES:
        print(f"usage: python -m ops.runtime.health {{{','.join(SERVICES)}}}", file=sys.stderr)
        sys.exit(2)
    problem = asyncio.run(problem_of(sys.argv[1], ProcessSettings.from_environment()))
    if problem is not None:
        print(problem, file=sys.stderr)
    sys.exit(0 if problem is None else 1)


if __name__ == "__main__":
    main()
