"""`python -m gateway`: a deployment's HTTP server."""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Generator
from pathlib import Path

import uvicorn

from gateway.app import create_app
from gateway.http.protocol import HttpProtocol
from gateway.settings import GatewaySettings
from gateway.upstream.backend import NodeBackend
from ops.runtime.address import http_url, listen
from ops.runtime.api_keys import KeyFileError, read_keys
from ops.runtime.errors import StartError
from ops.runtime.process import run
from proto.rpc import Node

GRACE_SECONDS = 5
"""Time that answers under way get to finish once the process is asked to stop."""
BACKLOG = 2048
"""Connections that the kernel queues until they are accepted."""
MAX_OPEN = 2**16
"""Open files, and so connections, that the process asks for. Most systems start a process with 1,024."""
KEEP_ALIVE_SECONDS = 75
"""Time that an idle connection is kept open."""

logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Does not handle signals: `ops.runtime.process` does."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(node: Node, settings: GatewaySettings) -> None:
    """Answer HTTP until cancelled. Then answers under way have `GRACE_SECONDS` to finish."""
    keys = _keys(settings.api_keys_file)
    _allow_connections()
    listener = _listen(settings.host, settings.port)
    app = create_app(NodeBackend(node), keys)
    config = uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level=logging.WARNING,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=2 * GRACE_SECONDS,
    )
    server = _Server(config)
    url = http_url(settings.host, settings.port)
    await node.update(url=url)
    serving = asyncio.ensure_future(server.serve([listener]))
    logger.info("listening on %s", url)
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        end = asyncio.get_running_loop().call_later(GRACE_SECONDS, app.state.generator.stop)
        await serving
        end.cancel()


def _keys(path: str) -> dict[str, str]:
    """Tenant by API key; empty without a file. Raises `StartError`."""
    try:
        return read_keys(Path(path)) if path else {}
    except KeyFileError as error:
        raise StartError(f"QUIRE_API_KEYS_FILE={error}") from None


def _allow_connections() -> None:
    """Raise the limit on open files: beyond it, connections are refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN if hard == resource.RLIM_INFINITY else min(MAX_OPEN, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `StartError` if the address cannot be listened on."""
    try:
        return listen(host, port, BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} is taken: set QUIRE_PORT to another") from None
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from None


if __name__ == "__main__":
    run(GatewaySettings.from_environment(), "gateway", serve)
