"""The servicer of `quire.Inside`: shows what the scheduler does. While nobody looks, it costs nothing."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from proto.inside_pb2 import Look, WatchRequest
from proto.inside_pb2_grpc import InsideServicer
from scheduler_svc.engine import Engine
from scheduler_svc.inside.lookout import Lookout

LOOK_SECONDS = 0.2
"""Time between two looks at least: people can hardly follow more. A gateway works at each look, too."""
REST = 400
"""Time between two looks at least, as a multiple of what a look takes: a quarter percent of a core's time."""
MOST_WATCHERS = 16
"""Gateways that look at once."""


class InsideService(InsideServicer):
    """See inside.proto."""

    def __init__(self, engine: Engine, scheduler_id: str) -> None:
        self._engine, self._id = engine, scheduler_id

    async def Watch(self, request: WatchRequest, context: Any) -> AsyncIterator[Look]:
        if self._id in request.schedulers:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{self._id} is watched already")
        engine = self._engine
        with Lookout(self._id, engine.fleet, engine.links, engine.measures) as lookout:
            while True:
                began = time.thread_time()
                look = lookout.look()
                spent = time.thread_time() - began
                if look is not None:
                    yield look
                await asyncio.sleep(max(LOOK_SECONDS, REST * spent))
