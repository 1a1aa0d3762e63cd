"""GET /metrics: the metrics of all processes, for Prometheus."""

from fastapi import APIRouter, Request, Response

from gateway.errors import Unauthorized
from gateway.http.openapi import getting_text
from ops.runtime.metrics_page import OfAll, Read

KEPT_SECONDS = 1.0
"""Time for which a page is shown again. With many processes it takes a good part of a second to make."""


def router(read: Read) -> APIRouter:
    """`read`: reads what all processes have left."""
    routes = APIRouter()
    page = OfAll(read, KEPT_SECONDS)

    @routes.get("/metrics", openapi_extra=getting_text("Metrics of all processes.", Unauthorized))
    async def show_metrics(request: Request) -> Response:
        """What all processes have counted and measured."""
        body, kind = await page.page(request.headers.get("accept", ""))
        return Response(body, headers={"Content-Type": kind})

    return routes
