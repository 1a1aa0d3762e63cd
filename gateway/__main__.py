"""`python -m gateway`: the HTTP front of a deployment."""

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

# How long answers under way may go on once the process has been asked to stop.
GRACE_SECONDS = 5
BACKLOG = 2048
MAX_OPEN = 2**16
"""Connections that may be open at once, if the machine lets us. A process begins with 1,024 on most."""
KEEP_ALIVE_SECONDS = 75

logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Leaves signals to `ops.runtime.process`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(node: Node, settings: GatewaySettings) -> None:
    """Answer HTTP until cancelled, then let answers under way finish within the grace."""
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
    """The tenant of each key; none without a file. Raises `StartError`."""
    try:
        return read_keys(Path(path)) if path else {}
    except KeyFileError as error:
        raise StartError(f"QUIRE_API_KEYS_FILE={error}") from None


def _allow_connections() -> None:
    """Who comes when all are taken finds the door slammed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN if hard == resource.RLIM_INFINITY else min(MAX_OPEN, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `StartError` if there can be none."""
    try:
        return listen(host, port, BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} is taken: set QUIRE_PORT to another") from None
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from None


if __name__ == "__main__":
    run(GatewaySettings.from_environment(), "gateway", serve)
