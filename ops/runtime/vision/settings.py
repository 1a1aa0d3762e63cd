"""Objects of settings files, whose numbers are checked when they are read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ops.runtime.model_files import MOST_SIZE, FileError


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

    def within(self, key: str) -> "Settings":
        """The object at a key; one without keys if there is none. Raises `FileError`."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(f"{key}: {str(value)[:40]} is no object")
        return replace(self, values=value or {})
