"""GET /health/live and /health/ready, for supervisors and load balancers."""

from typing import Any

from fastapi import APIRouter, Response

from gateway.errors import Unavailable
from gateway.upstream.catalog import Catalog

_SERVICES = ("tokenizer", "scheduler", "worker")


def router(catalog: Catalog) -> APIRouter:
    routes = APIRouter()

    @routes.get("/health/live")
    async def live() -> dict[str, str]:
        """The process runs."""
        return {"status": "live"}

    @routes.get("/health/ready")
    async def ready(response: Response) -> dict[str, Any]:
        """Status 200 if a model is available; otherwise 503 and what is missing."""
        try:
            models = await catalog.models()
        except Unavailable as error:
            response.status_code = error.status
            return {"status": "not ready", "models": [], "missing": ["message queue"]}
        available = [model.name for model in models if not model.missing]
        if available:
            return {"status": "ready", "models": available}
        response.status_code = 503
        missing = [f"{service} of {model.name}" for model in models for service in model.missing]
        return {"status": "not ready", "models": [], "missing": missing or list(_SERVICES)}

    return routes
