"""The images of requests under way, which the services behind the gateway read from Redis."""

from collections.abc import Mapping
from contextlib import suppress

from ops.runtime.image_store import ImageStore
from proto.rpc import BusAway

Images = Mapping[str, bytes]
"""Files by their names in the image store."""
NO_IMAGES: Images = {}

LONGEST_SECONDS = 86400
"""Time that images are kept for a call without a deadline."""
MARGIN_SECONDS = 60
"""Time that they are kept beyond a deadline."""


class KeptImages:
    """The images of one request in Redis, from its first call until its answer ends."""

    def __init__(self, store: ImageStore, images: Images) -> None:
        self._store, self._images = store, images
        self._there = False

    async def put(self, seconds: float | None) -> None:
        """Before a call that may take that long; None: any time. Raises `BusAway`."""
        self._there = True
        for name, image in self._images.items():
            await self._store.put(
                name, image, int(LONGEST_SECONDS if seconds is None else seconds) + MARGIN_SECONDS
            )

    async def drop(self) -> None:
        """The answer has ended. What cannot be dropped runs out."""
        if self._there:
            with suppress(BusAway):
                await self._store.drop(self._images)
