"""How the gateway is, for supervisors and load balancers: /health, /health/live, /health/ready, /ping, /load;
and GET /version.
"""

from typing import Any

from fastapi import APIRouter, Response

from gateway.api.system.health_answer_schema import Liveness, Load, Readiness, Version
from gateway.errors import Unauthorized, Unavailable
from gateway.http.draining import Drain
from gateway.http.openapi import getting
from gateway.upstream.catalog import SERVICES, Catalog, Model
from gateway.upstream.generator import Generator


def router(catalog: Catalog, drain: Drain, generator: Generator, version: str) -> APIRouter:
    routes = APIRouter()

    @routes.get("/version", response_model=None, openapi_extra=getting(Version))
    async def tell_version() -> dict[str, str]:
        """What runs here."""
        return {"version": version}

    @routes.get("/health/live", response_model=None, openapi_extra=getting(Liveness))
    async def live() -> dict[str, str]:
        """The process runs."""
        return {"status": "live"}

    @routes.get("/load", response_model=None, openapi_extra=getting(Load, Unauthorized))
    async def load() -> dict[str, int]:
        """How much this gateway has to do."""
        return {"server_load": generator.under_way}

    # Under their first names other servers have this, and their clients look there.
    @routes.post("/ping", response_model=None, include_in_schema=False)
    @routes.get("/ping", response_model=None, openapi_extra=getting(Readiness, unready=True))
    @routes.get("/health", response_model=None, openapi_extra=getting(Readiness, unready=True))
    @routes.get("/health/ready", response_model=None, openapi_extra=getting(Readiness, unready=True))
    async def ready(response: Response) -> dict[str, Any]:
        """Status 200 if a model is available and gets on; otherwise 503 and what is missing. 503 while it
        stops."""
        found = await readiness(catalog, drain)
        response.status_code = 200 if found["status"] == "ready" else Unavailable.status
        return found

    return routes


async def readiness(catalog: Catalog, drain: Drain) -> dict[str, Any]:
    """What /health/ready answers. The `status` is "ready" if a model is available and gets on."""
    if drain.begun:
        return {"status": "stopping", "models": [], "missing": []}
    try:
        models = await catalog.models()
    except Unavailable:
        return {"status": "not ready", "models": [], "missing": ["message queue"]}
    available = [model.name for model in models if not (model.missing or model.stalled)]
    missing = [f"{service} of {model.name}" for model in models for service in _lacking(model)]
    if available:
        return {"status": "ready", "models": available} | ({"missing": missing} if missing else {})
    return {"status": "not ready", "models": [], "missing": missing or list(SERVICES)}


def _lacking(model: Model) -> tuple[str, ...]:
    return model.missing or (("progress",) if model.stalled else ())
