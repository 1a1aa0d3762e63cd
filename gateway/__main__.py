"""`python -m gateway`: a deployment's HTTP server."""

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from gateway.app import Options, Stores, create_app
from gateway.errors import Unavailable
from gateway.followers import MAX_FOLLOWERS
from gateway.http.body_memory import MAX_FRAME_BYTES
from gateway.http.claims import Claims
from gateway.http.connections import MAX_PROBES, ConnectionLimits
from gateway.http.draining import Drain
from gateway.http.key_ring import KeyRing
from gateway.http.meter import Meter
from gateway.http.protocol import protocol
from gateway.http.websocket import WebSocketProtocol
from gateway.settings import GatewaySettings
from gateway.upstream.admission import MAX_BYTES
from gateway.upstream.backend import NodeBackend
from gateway.upstream.batch_store import BatchStore
from gateway.upstream.fetched_images import AT_ONCE, MAX_FETCHING
from gateway.upstream.file_store import FileStore
from gateway.upstream.job_queue import JobQueue
from gateway.upstream.response_store import ResponseStore
from ops.runtime.address import cannot_listen, check_free, http_url, listen
from ops.runtime.api_keys import Key, KeyFileError, digest_of, read_keys
from ops.runtime.drain import asked_to_stop
from ops.runtime.errors import StartError
from ops.runtime.image_store import ImageStore
from ops.runtime.key_store import KeyStore
from ops.runtime.metrics import METRICS
from ops.runtime.metrics_store import MetricsStore, read_all
from ops.runtime.process import run
from proto.rpc import BusAway, Lease, Node, Owner
from proto.rpc.line import Line

LAST_SECONDS = 5
"""Time in which clients must take the ends of their answers, once all answers have ended."""
LOOK_SECONDS = 0.5
"""Time between two looks at the other gateways, while this one drains."""
BACKLOG = 2048
"""Connections that the kernel queues until they are accepted."""
MAX_OPEN = 2**16
"""Open files, and so connections, that the process asks for. Most systems start a process with 1,024."""
OTHER_FILES = 64 + 2 * MAX_FOLLOWERS + MAX_PROBES + MAX_FETCHING * AT_ONCE
"""Open files besides the connections that clients may have. Among them are connections for health checks."""

TOO_LITTLE = (
    "Redis may take %d MiB (maxmemory), what may be stored there %d MiB, and requests under way %d MiB: "
    "clients can fill it, and then all requests pause"
)

logger = logging.getLogger(__name__)


class _Server(uvicorn.Server):
    """Does not handle signals: `ops.runtime.process` does.

    Wakes once a second, for the header `Date`. uvicorn wakes ten times, to look whether it is to stop.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stop.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stop.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


async def serve(node: Node, settings: GatewaySettings) -> None:
    """Answer HTTP until cancelled. Then answers under way have `settings.stop_seconds` to finish."""
    redis = Line(settings.redis_url)
    keys = await _key_ring(redis, settings)
    await _look_for_room(redis, settings.stored_bytes)
    connections = ConnectionLimits(
        connections=min(settings.max_connections, _allow_connections()),
        per_address=settings.max_connections_per_address,
    )
    url = http_url(settings.host, settings.port)
    listener = await _listen(node, settings, url)
    # Lines of their own: what is stored, and files of images, would hold up keys, limits and leases of jobs.
    stored, images = Line(settings.redis_url), Line(settings.redis_url)
    stores = _stores(node, redis, stored, images, settings)
    app = create_app(NodeBackend(node), keys, settings.limits, stores, _options(settings))
    METRICS.read_by(app.state.generator.read_metrics)
    server = _Server(_http_config(app, connections))
    await node.update(url=url)
    async with Owner() as owner:
        serving = owner.own(server.serve([listener]), "the HTTP server")
        owner.own(app.state.generator.watch(), "what watches for lost models")
        jobs = owner.own(app.state.jobs.run(), "what works at jobs")
        logger.info("listening on %s", url)
        try:
            await owner.ended()
        except asyncio.CancelledError:
            app.state.jobs.drain()
            await _drain(node, app.state.drain, server, url, settings.stop_seconds)
            raise
        finally:
            jobs.cancel()
            await asyncio.gather(jobs, return_exceptions=True)  # others take them before they could fail here
            app.state.generator.stop()
            server.stop()
            await serving
            for line in (redis, stored, images):
                line.close()


async def _key_ring(redis: Line, settings: GatewaySettings) -> KeyRing:
    """The API keys.

    Raises `StartError` if a network could ask without a key, `ConnectionError` if they cannot be read.
    """
    keys = KeyRing(_keys(settings.api_keys_file), KeyStore(redis, settings.stream_prefix))
    try:
        settings.check_open(await keys.needed())
    except Unavailable:
        raise ConnectionError("the API keys cannot be read: Redis is away") from None
    return keys


async def _look_for_room(redis: Line, stored: int) -> None:
    """Warn if Redis would be full when as much is stored as may be. Raises `BusAway`."""
    room = await redis.room()
    if 0 < room < stored + MAX_BYTES:
        sizes = (one // 2**20 for one in (room, stored, MAX_BYTES))
        logger.warning(TOO_LITTLE, *sizes)


def _keys(path: str) -> dict[str, Key]:
    """The keys of a file by digest; empty without a file. Raises `StartError`."""
    try:
        names = read_keys(Path(path)) if path else {}
        return {digest_of(secret): Key(name=name, tenant=name) for secret, name in names.items()}
    except KeyFileError as error:
        raise StartError(f"QUIRE_API_KEYS_FILE={error}") from None


def _stores(node: Node, redis: Line, stored: Line, images: Line, settings: GatewaySettings) -> Stores:
    prefix, jobs_per_tenant = settings.stream_prefix, settings.jobs_per_tenant
    return Stores(
        meter=Meter(redis, prefix, node.id),
        metrics=partial(read_all, node, MetricsStore(redis, prefix)),
        responses=_responses(stored, settings),
        background=JobQueue(redis, prefix, "response", jobs_per_tenant),
        batches=BatchStore(stored, prefix, _files(stored, settings)),
        batch_queue=JobQueue(redis, prefix, "batch", jobs_per_tenant),
        images=ImageStore(images, prefix),
        claims=_claims(stored, settings),
    )


def _responses(redis: Line, settings: GatewaySettings) -> ResponseStore | None:
    """Where responses are kept; None if they are not."""
    if not settings.responses_seconds:
        return None
    return ResponseStore(
        redis,
        settings.stream_prefix,
        seconds=settings.responses_seconds,
        tenant_bytes=settings.responses_bytes_per_tenant,
        all_bytes=settings.responses_bytes,
    )


def _files(redis: Line, settings: GatewaySettings) -> FileStore:
    return FileStore(
        redis,
        settings.stream_prefix,
        seconds=settings.files_seconds,
        tenant_bytes=settings.files_bytes_per_tenant,
        all_bytes=settings.files_bytes,
    )


def _claims(redis: Line, settings: GatewaySettings) -> Claims | None:
    """Where answers to requests with an `Idempotency-Key` are kept; None if they are not."""
    if not settings.idempotency_seconds:
        return None
    return Claims(
        connect=lambda: Line(settings.redis_url),
        line=redis,
        prefix=settings.stream_prefix,
        seconds=settings.idempotency_seconds,
        all_bytes=settings.idempotency_bytes,
    )


def _options(settings: GatewaySettings) -> Options:
    return Options(
        access=settings.access,
        answer_timeout=settings.answer_timeout,
        aliases=settings.aliases,
        strict_fields=settings.strict_fields,
        trace_url=settings.trace_url,
        file_bytes=settings.file_bytes,
        batch_lines_at_once=settings.batch_lines_at_once,
        image_hosts=settings.fetched_from,
        volatile_header=settings.volatile_header,
    )


def _http_config(app: FastAPI, connections: ConnectionLimits) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
        http=protocol(connections),
        ws=WebSocketProtocol,
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        lifespan="on",
        access_log=False,
        log_config=None,
        log_level=logging.WARNING,
        server_header=False,
        proxy_headers=False,  # anyone on this machine could name any address
        timeout_keep_alive=int(connections.idle),
        timeout_graceful_shutdown=LAST_SECONDS,
    )


def _allow_connections() -> int:
    """Raise the limit on open files. Returns how many connections have room beside other files.

    Raises `StartError` if none has.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_OPEN if hard == resource.RLIM_INFINITY else min(MAX_OPEN, hard)
    if soft == resource.RLIM_INFINITY:
        return MAX_OPEN
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if (room := max(soft, most) - OTHER_FILES) <= 0:
        allowed = f"{max(soft, most)} files may be open (ulimit -n)"
        raise StartError(f"{allowed}, and a gateway opens up to {OTHER_FILES} besides connections")
    return room


async def _listen(node: Node, settings: GatewaySettings, url: str) -> socket.socket:
    """A listening socket. Gateways of one deployment may share an address; nobody else's is taken.

    Raises `StartError` if the address cannot be listened on.
    """
    host, port = settings.host, settings.port
    try:
        try:
            check_free(host, port)
        except OSError as error:
            shared = error.errno == errno.EADDRINUSE
            holders = await node.leases(any_protocol=True) if shared else []
            if not any(_listens(lease, url) for lease in holders):
                raise
        return listen(host, port, BACKLOG, share=True)
    except OSError as error:
        if isinstance(error, BusAway):
            raise
        if error.errno == errno.EADDRINUSE:
            raise cannot_listen(f"port {port} is taken: set QUIRE_PORT to another", error) from None
        raise cannot_listen(f"cannot listen on {host}:{port}: {error.strerror}", error) from None


async def _drain(node: Node, drain: Drain, server: uvicorn.Server, url: str, seconds: float) -> None:
    """Return when all answers have ended, or after `seconds`.

    Once another gateway listens at the same address, this one does not listen any more. Until then it does:
    it answers health checks, and tells clients to try again.
    """
    asked_to_stop()
    end = time.monotonic() + seconds
    await _find_successor(node, drain, server, url)
    drain.begun = True
    await node.update(stopping=True)
    while (left := end - time.monotonic()) > 0 and not await drain.idle(min(left, LOOK_SECONDS)):
        await _find_successor(node, drain, server, url)


async def _find_successor(node: Node, drain: Drain, server: uvicorn.Server, url: str) -> None:
    if not drain.replaced and await _others_at(node, url):
        drain.replaced = True
        for each in server.servers:
            each.close()


async def _others_at(node: Node, url: str) -> bool:
    """Whether another gateway of this deployment and machine listens at this address, and is not stopping."""
    try:
        leases = await node.leases(any_protocol=True)
    except BusAway:
        return False
    return any(
        _listens(lease, url) and not lease.info.get("stopping")
        for lease in leases
        if lease.process_id != node.id
    )


def _listens(lease: Lease, url: str) -> bool:
    """Whether the process is a gateway that listens at this address of this machine."""
    here = lease.service == "gateway" and lease.host == socket.gethostname()
    return here and lease.info.get("url") == url


if __name__ == "__main__":
    run(GatewaySettings.from_environment(), "gateway", serve)
