"""One Generate or Embed call: what it has yet to be sent, and how it ends."""

from proto.rpc.mailbox import Mailbox
from proto.scheduler_pb2 import EmbedTokensResponse, GenerateResponse

Response = GenerateResponse | EmbedTokensResponse


class Call(Mailbox[Response]):
    """Filled by results, emptied by the servicer with `get`: after None `error` says how it has ended."""

    __slots__ = ("begun", "error")

    def __init__(self) -> None:
        super().__init__()
        self.begun = False
        """Something was added already."""
        self.error: Exception | None = None

    def add(self, item: Response) -> None:
        self.begun = True
        super().add(item)

    def end(self, error: Exception | None = None) -> None:
        """No more will be added; what was added is still sent. It ends once."""
        if self._closed:
            return
        self.error = error
        self.close()
