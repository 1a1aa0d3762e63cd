"""One Generate or Embed call: what it has yet to be sent, and how it ends."""

from collections.abc import Awaitable

from proto.rpc.mailbox import Mailbox
from proto.scheduler_pb2 import EmbedTokensResponse, GenerateResponse

Response = GenerateResponse | EmbedTokensResponse


class Call:
    """Filled by results, emptied by the servicer."""

    def __init__(self) -> None:
        self.begun = False
        """Something was put already."""
        self.error: Exception | None = None
        self._responses: Mailbox[Response] = Mailbox()

    def put(self, response: Response) -> None:
        self.begun = True
        self._responses.add(response)

    def end(self, error: Exception | None = None) -> None:
        """No more will be put; what was put is still sent."""
        self.error = error
        self._responses.close()

    def next(self) -> Awaitable[Response | None]:
        """The next response, or None at the end: see `error` for which."""
        return self._responses.get()
