"""GET /metrics: the metrics of all processes, for Prometheus."""

from functools import partial

from fastapi import APIRouter, Request, Response

from gateway.errors import Unauthorized, Unavailable
from gateway.http.openapi import getting_text
from gateway.upstream.backend import Backend
from ops.runtime.metrics_page import OfAll
from ops.runtime.metrics_store import MetricsStore
from proto.rpc import BusAway

KEPT_SECONDS = 1.0
"""Time for which a page is shown again. With many processes it takes a good part of a second to make."""


def router(backend: Backend, store: MetricsStore) -> APIRouter:
    """`store`: where all processes leave their metrics."""
    routes = APIRouter()
    page = OfAll(partial(_read, backend, store), KEPT_SECONDS)

    @routes.get("/metrics", openapi_extra=getting_text("Metrics of all processes.", Unauthorized))
    async def show_metrics(request: Request) -> Response:
        """What all processes have counted and measured."""
        body, kind = await page.page(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": kind})

    return routes


async def _read(backend: Backend, store: MetricsStore) -> dict[str, bytes]:
    """The snapshots of all live processes. Raises `Unavailable`."""
    try:
        return await store.read([lease.process_id for lease in await backend.leases()])
    except (BusAway, ConnectionError, TimeoutError):
        raise Unavailable("The message queue cannot be reached.") from None
