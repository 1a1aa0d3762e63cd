"""Images of a conversation: parts of what a chat template sees, and runs of tokens in the prompt.

    message      "Compare" <image> "with" <image>
    template     [text, image, text, image]
    text         Compare<|image_pad|>with<|image_pad|>
    prompt       Compare<|image_pad|><|image_pad|>...with<|image_pad|>...

The template writes one placeholder for an image. How many tokens take its place depends on the image's size,
so each image is read from the store and decoded: one that is broken is refused here.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers

from ops.model_directory.files import FileError
from ops.model_directory.image_files import measured
from ops.model_directory.vision import TEXT_ALONE, Grid, ImageError, Vision, read_vision
from ops.runtime.image_store import MAX_IMAGES, ImageStore
from ops.runtime.turns import Turns
from proto.images_pb2 import ImageFile, PromptImage
from proto.tokenizer_pb2 import ChatMessage, ContentImage, Conversation
from tokenizer_svc.errors import InvalidRequestError, ModelDirectoryError

KNOWN_SIZES = 10_000
"""Images whose sizes are remembered, so that the next turn of a conversation decodes no image again."""


@dataclass(frozen=True, slots=True)
class ImageTokens:
    """How a model's prompts spell images."""

    vision: Vision
    placeholder: str
    """Text of the token that the chat template writes for an image."""
    ids: Mapping[str, int]
    """Ids of the other tokens in runs, by their text."""

    @classmethod
    def load(cls, directory: Path, tokenizer: tokenizers.Tokenizer, most: int) -> "ImageTokens | None":
        """Of a model directory; None if the model takes no images. Raises `ModelDirectoryError`.

        `most`: tokens of one image that see something.
        """
        try:
            vision = read_vision(directory, most)
        except FileError as error:
            raise ModelDirectoryError(f"{error} ({TEXT_ALONE})") from error
        if vision is None:
            return None
        placeholder: str | None = tokenizer.id_to_token(vision.written)
        found = {text: _token_of(text, tokenizer) for text in vision.texts}
        ids = {text: token for text, token in found.items() if token is not None}
        if placeholder is None or len(ids) < len(found):
            lacking = min(found.keys() - ids.keys(), default="")
            what = f"token {vision.written}" if placeholder is None else repr(lacking)[1:-1]
            raise ModelDirectoryError(
                f"{directory}: the tokenizer has no {what}, which stands for images ({TEXT_ALONE})"
            )
        return cls(vision, placeholder, ids)

    def apart(self, text: str) -> str:
        """A rendered conversation, with the text that the model has around images."""
        around = self.vision.around
        return text.replace(self.placeholder, around + self.placeholder + around) if around else text

    def run(self, grid: Grid) -> list[int]:
        """The tokens that stand for an image."""
        return [self.ids[part] if isinstance(part, str) else part for part in self.vision.run(grid)]


def _token_of(text: str, tokenizer: tokenizers.Tokenizer) -> int | None:
    """Id of a text that is one token; None if it is not."""
    if (token := tokenizer.token_to_id(text)) is not None:
        return int(token)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    return tokens[0] if len(tokens) == 1 else None


class ImageSizes:
    """Sizes of images in the store. One is decoded at a time, and tenants take turns."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store
        self._turns = Turns()
        self._thread = ThreadPoolExecutor(1, "images")  # also for an image whose caller has left
        self._known: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    async def of(self, file: ImageFile, tenant: str) -> tuple[int, int]:
        """Width and height in pixels. Raises `ImageError`, `ImageGone`, and `BusAway` without Redis."""
        if file.digest in self._known:
            self._known.move_to_end(file.digest)
            return self._known[file.digest]
        async with self._turns.turn(tenant):
            data = await self._store.get(file)
            size = await asyncio.get_running_loop().run_in_executor(self._thread, measured, data)
        self._known[file.digest] = size
        if len(self._known) > KNOWN_SIZES:
            self._known.popitem(last=False)
        return size

    def close(self) -> None:
        """End the thread once it has decoded the image that it has."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def images_in(chat: Conversation) -> list[ContentImage]:
    """All images of a conversation, in order."""
    return [image for message in chat.messages for image in message.images]


def check_images(chat: Conversation, tokens: ImageTokens | None) -> None:
    """Check what can be checked without the files. Raises `InvalidRequestError`.

    `tokens`: the model's; None: it takes no images.
    """
    images = images_in(chat)
    if not images:
        return
    if tokens is None:
        raise InvalidRequestError("messages", "this model takes no images")
    if len(images) > MAX_IMAGES:
        raise InvalidRequestError("messages", f"at most {MAX_IMAGES} images, not {len(images)}")
    for message in chat.messages:
        offsets = [image.offset for image in message.images]
        if offsets and (offsets != sorted(offsets) or offsets[-1] > len(message.content)):
            raise InvalidRequestError("messages", "the images of a message are not in order within its text")


def in_parts(message: ChatMessage) -> list[dict[str, Any]]:
    """Text and images of a message as chat templates take them."""
    parts, done = list[dict[str, Any]](), 0
    for end in [*(image.offset for image in message.images), None]:
        if text := message.content[done:end]:
            parts.append({"type": "text", "text": text})
        if end is not None:
            parts.append({"type": "image"})
            done = end
    return parts


async def with_images(
    prompt: Sequence[int],
    images: Sequence[ContentImage],
    tokens: ImageTokens,
    sizes: ImageSizes,
    tenant: str,
) -> tuple[list[int], list[PromptImage]]:
    """The prompt with a run of tokens in place of each placeholder, and where the images are in it.

    Raises `InvalidRequestError`, `ImageGone`, and `BusAway` without Redis.
    """
    _check_placeholders(prompt.count(tokens.vision.written), len(images), tokens.placeholder)
    grids = [await _grid(image, tokens.vision, sizes, tenant) for image in images]
    return _spread(prompt, images, grids, tokens)


def _check_placeholders(found: int, images: int, text: str) -> None:
    if found > images:
        what = f"{images} images and {found} times {text}, which stands for an image: leave it out of texts"
        raise InvalidRequestError("messages", f"the conversation has {what}")
    if found < images:
        what = f"shows {found} of the conversation's {images} images"
        raise InvalidRequestError("messages", f"the model's chat template {what}")


async def _grid(image: ContentImage, vision: Vision, sizes: ImageSizes, tenant: str) -> Grid:
    try:
        return vision.grid(*await sizes.of(image.file, tenant), image.low_detail)
    except ImageError as error:
        raise InvalidRequestError("messages", str(error)) from error


def _spread(
    prompt: Sequence[int], images: Iterable[ContentImage], grids: Iterable[Grid], tokens: ImageTokens
) -> tuple[list[int], list[PromptImage]]:
    spread, found, done = list[int](), list[PromptImage](), 0
    for image, grid in zip(images, grids, strict=True):
        place = prompt.index(tokens.vision.written, done)
        spread += prompt[done:place]
        run = tokens.run(grid)
        found.append(
            PromptImage(
                file=image.file,
                position=len(spread),
                tokens=len(run),
                rows=grid.rows,
                columns=grid.columns,
            )
        )
        spread += run
        done = place + 1
    return [*spread, *prompt[done:]], found
