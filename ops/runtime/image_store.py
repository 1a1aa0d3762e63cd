"""Images of requests that are under way, in Redis: messages name them, so that no stream carries them.

The gateway puts an image there before it calls for an answer, again with each attempt, and takes it away at
the end. After the prefix the key is `images:<name>`. Who reads an image checks it against the hash that came
with its name, in a message that is sealed where the deployment has a secret.
"""

import asyncio
from collections.abc import Iterable
from hashlib import sha256

from proto.images_pb2 import ImageFile
from proto.rpc.line import Line

MAX_IMAGES = 64
"""Images of a request."""
MAX_IMAGE_BYTES = 16 * 2**20
"""Bytes of one image's file."""


class ImageGone(Exception):
    """An image is not in the store, or it is another one."""


def image_file(name: str, image: bytes) -> ImageFile:
    """What a message says of an image that is put into the store under `name`."""
    return ImageFile(name=name, digest=_digest(image))


class ImageStore:
    """The images of one deployment. Methods raise `BusAway` if Redis cannot be reached."""

    def __init__(self, line: Line, prefix: str) -> None:
        self._line, self._base = line, f"{prefix}images:"

    async def put(self, name: str, image: bytes, seconds: int) -> None:
        """Keep an image for that time. If Redis has no room for it, that is a `BusAway`, too."""
        await self._line.execute(("SET", self._base + name, image, "EX", seconds))

    async def get(self, file: ImageFile) -> bytes:
        """Raises `ImageGone`."""
        (image,) = await self._line.execute(("GET", self._base + file.name))
        # Up to 40 ms, in which other threads run.
        if not isinstance(image, bytes) or await asyncio.to_thread(_digest, image) != file.digest:
            raise ImageGone("an image of the request is not in Redis any more")
        return image

    async def drop(self, names: Iterable[str]) -> None:
        """Forget images."""
        if keys := [self._base + name for name in names]:
            await self._line.execute(("DEL", *keys))


def _digest(image: bytes) -> bytes:
    return sha256(image).digest()
