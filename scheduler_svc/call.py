"""One Generate or Embed call: what it has yet to be sent, and how it ends."""

import asyncio
from collections import deque

from proto.scheduler_pb2 import EmbedTokensResponse, GenerateResponse
from scheduler_svc.core.errors import SchedulerError

Response = GenerateResponse | EmbedTokensResponse


class Call:
    """Filled by results, emptied by the servicer."""

    def __init__(self) -> None:
        self.begun = False
        """Something was put already."""
        self.error: SchedulerError | None = None
        self._responses: deque[Response] = deque()
        self._ended = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, response: Response) -> None:
        self.begun = True
        self._responses.append(response)
        self._wake()

    def end(self, error: SchedulerError | None = None) -> None:
        """No more will be put; what was put is still sent."""
        self._ended = True
        self.error = error
        self._wake()

    async def next(self) -> Response | None:
        """The next response, or None at the end: see `error` for which."""
        while not self._responses:
            if self._ended:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._responses.popleft()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
