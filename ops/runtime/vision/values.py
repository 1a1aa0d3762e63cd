"""Numbers of a model's configuration and of its image processor's settings."""

from collections.abc import Mapping
from typing import Any

from ops.runtime.model_files import MOST_SIZE


def whole(values: Mapping[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    """The whole number at a key; the default if there is none. Raises `ValueError`."""
    if not isinstance(values, Mapping):
        raise ValueError(f"where {key} is to be there is {str(values)[:40]}")
    value = values.get(key)
    if value is None:
        value = default
    if type(value) is not int or not least <= value <= MOST_SIZE:
        raise ValueError(f"{key}: {str(value)[:40]} is no whole number from {least} to {MOST_SIZE}")
    return value


def token(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Id of a token of config.json, which transformers 5 calls `..._id` and earlier versions `..._index`.
    Raises `ValueError`."""
    key = f"{name}_id" if f"{name}_id" in config else f"{name}_index"
    return whole(config, key, default, least=0)
