"""Settings of models that see, which are checked when they are read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ops.model_directory.files import MOST_SIZE, FileError


class TooManyTokens(Exception):
    """An image has more tokens than it may have, and cannot have fewer."""


@dataclass(frozen=True, slots=True)
class Settings:
    """An object in a file of settings."""

    path: Path
    values: Mapping[str, Any]

    def wrong(self, message: str) -> FileError:
        """The error that names the file."""
        return FileError(f"{self.path}: {message}")

    def whole(self, key: str, default: int | None = None, least: int = 1) -> int:
        """The whole number at a key; the default if there is none. Raises `FileError`."""
        value = default if self.values.get(key) is None else self.values[key]
        if type(value) is not int or not least <= value <= MOST_SIZE:
            what = f"{str(value)[:40]} is no whole number from {least} to {MOST_SIZE}"
            raise self.wrong(f"{key}: {what}")
        return value

    def side(self, key: str, default: int) -> int:
        """Pixels of a side of a square, written as one number or for both sides. Raises `FileError`."""
        match self.values.get(key):
            case [height, width] if height == width:
                return replace(self, values={key: height}).whole(key)
            case {"height": height, "width": width} if height == width:
                return replace(self, values={key: height}).whole(key)
            case _:
                return self.whole(key, default)

    def flag(self, key: str, default: bool) -> bool:
        """The truth value at a key; the default if there is none. Raises `FileError`."""
        value = default if self.values.get(key) is None else self.values[key]
        if not isinstance(value, bool):
            raise self.wrong(f"{key}: {str(value)[:40]} is neither true nor false")
        return value

    def within(self, key: str) -> "Settings":
        """The object at a key; one without keys if there is none. Raises `FileError`."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(f"{key}: {str(value)[:40]} is no object")
        return replace(self, values=value or {})


@dataclass(frozen=True, slots=True)
class SeeingModel:
    """What decides how a model reads images."""

    config: Settings
    """config.json."""
    processor: Settings
    """Settings of the image processor."""
    most: int
    """Tokens of one image, at most, that see something."""

    @property
    def tower(self) -> Settings:
        return self.config.within("vision_config")

    @property
    def placeholder(self) -> int:
        key = "image_token_id" if "image_token_id" in self.config.values else "image_token_index"
        return self.config.whole(key, least=0)

    def images_of(self, tokens: int) -> int:
        """How many images, or tiles of one, of this many tokens may be seen. Raises `TooManyTokens` if it is
        none."""
        if tokens > self.most:
            raise TooManyTokens(f"an image may have {tokens} tokens, and QUIRE_IMAGE_TOKENS is {self.most}")
        return self.most // tokens
