"""`python -m gateway`: the HTTP front of a deployment."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Generator
from pathlib import Path

import uvicorn

from gateway.app import create_app
from gateway.backend import NodeBackend
from gateway.settings import GatewaySettings
from ops.api_keys import KeyFileError, read_keys
from ops.errors import StartError
from ops.process import run
from proto.rpc import Node

# How long answers under way may go on once the process has been asked to stop.
GRACE_SECONDS = 5
BACKLOG = 2048
KEEP_ALIVE_SECONDS = 75

logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Leaves signals to `ops.process`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(node: Node, settings: GatewaySettings) -> None:
    """Answer HTTP until cancelled, then let answers under way finish within the grace."""
    keys = _keys(settings.api_keys_file)
    listener = _listen(settings.host, settings.port)
    app = create_app(NodeBackend(node), keys)
    config = uvicorn.Config(
        app,
        http="httptools",
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
    url = f"http://{settings.host}:{settings.port}"
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


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `StartError` if there can be none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} is taken: set QUIRE_PORT to another") from None
        raise StartError(f"cannot listen on {host}:{port}: {error.strerror}") from None


if __name__ == "__main__":
    run(GatewaySettings.from_environment(), "gateway", serve)
