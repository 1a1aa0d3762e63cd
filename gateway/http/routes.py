"""Routes that are found at once, by method and path, and answered without FastAPI.

FastAPI asks one route after the other whether a path is its own, and prepares arguments for its endpoint.
An endpoint that takes the request alone, at a path without parameters, needs neither. Such are all that
answer prompts. FastAPI documents them, and refuses other methods at their paths.
"""

import inspect
from collections.abc import Iterable

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send


class DirectRoutes(BaseRoute):
    """Stands for all such of some routes. It is asked before them."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self._routes = {
            (method, route.path): route
            for route in routes
            if isinstance(route, APIRoute) and _is_direct(route)
            for method in route.methods or ()
        }

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        route = self._routes.get((scope.get("method", ""), scope["path"]))
        if route is None:
            return Match.NONE, {}
        return Match.FULL, {"route": route, "endpoint": route.endpoint}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await scope["endpoint"](Request(scope, receive, send))
        await response(scope, receive, send)


def _is_direct(route: APIRoute) -> bool:
    parameters = inspect.signature(route.endpoint).parameters.values()
    return [one.annotation for one in parameters] == [Request] and not route.param_convertors
