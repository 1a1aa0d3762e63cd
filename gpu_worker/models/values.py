"""Typed values of config.json. Errors name the file and the key."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelError


@dataclass(frozen=True, slots=True)
class Values:
    """The values of an object in a JSON file. A key that is null counts as missing."""

    path: Path
    values: Mapping[str, Any]

    def get(self, key: str, default: Any = None) -> Any:
        """The value of any type, or `default` if the key is missing."""
        value = self.values.get(key)
        return default if value is None else value

    def wrong(self, key: str, what: str) -> ModelError:
        """An error that names the file and the key, followed by `what`."""
        return ModelError(f"{self.path}: {key}: {what}")

    def positive(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(key, f"a positive integer is needed, not {value!r}")
        return value

    def count(self, key: str, default: int = 0) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.wrong(key, f"an integer of at least 0 is needed, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise self.wrong(key, f"a positive number is needed, not {value!r}"[:200])
        return float(value)

    def maybe(self, key: str) -> float | None:
        """A positive number, or None if the key is missing."""
        return None if self.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, f"true or false is needed, not {value!r}")
        return value

    def fact(self, fact: bool | str) -> bool:
        """A value that a family fixes, or the flag of the key that it names."""
        return self.flag(fact) if isinstance(fact, str) else fact

    def object(self, key: str) -> "Values":
        """The object of a key, empty if the key is missing."""
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, f"an object is needed, not {value!r}")
        return Values(self.path, value)

    def but(self, key: str, value: Any) -> "Values":
        """These values with another value of one key."""
        return Values(self.path, {**self.values, key: value})

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of positive numbers."""
        value = self.get(key)
        if not isinstance(value, list) or not all(isinstance(one, int | float) and one > 0 for one in value):
            raise self.wrong(key, f"a list of positive numbers is needed, not {value!r}")
        return tuple(float(one) for one in value)
