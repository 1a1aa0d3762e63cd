"""How the model of a directory reads images: by its config.json and the settings of its image processor."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ops.runtime.model_files import MOST_SIZE, FileError, read_config, read_json
from ops.runtime.vision.sizes import AreaVision, EdgeVision
from ops.runtime.vision.vision import Vision

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""Files that may have the settings of an image processor, the one that counts first."""

_AREAS = frozenset(
    (
        *("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        *("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
        *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
    )
)
_EDGES = frozenset(("Mistral3ForConditionalGeneration",))


def read_vision(directory: Path, most: int) -> Vision | None:
    """How the model of a directory reads images; None if it is served without. Raises `FileError`.

    `most`: tokens of one image, at most, that see something.
    """
    path = directory / "config.json"
    config = read_config(path) if path.is_file() else {}
    match config.get("architectures"):
        case [str(name)] if name in _AREAS | _EDGES:
            pass
        case _:
            return None
    found, tower = _settings_in(directory), config.get("vision_config")
    if found is None or not isinstance(tower, Mapping):
        return None
    settings_path, settings = found
    with _reading(path):
        key = "image_token_id" if "image_token_id" in config else "image_token_index"
        placeholder = _whole(config, key, least=0)
        side = _whole(tower, "patch_size", 16) * _whole(config, "spatial_merge_size", 2)
    with _reading(settings_path):
        return (
            _area(placeholder, settings, most) if name in _AREAS else _edge(placeholder, side, settings, most)
        )


def processor_settings(directory: Path) -> Mapping[str, Any] | None:
    """Settings of the model's image processor, as transformers finds them; None if it has none."""
    found = _settings_in(directory)
    return None if found is None else found[1]


def _settings_in(directory: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The file with the settings, and the settings."""
    whole, path = (directory / name for name in PROCESSOR_FILES)
    if whole.is_file() and isinstance(own := read_json(whole).get("image_processor"), Mapping):
        return whole, own
    return (path, read_json(path)) if path.is_file() else None


def _area(placeholder: int, settings: Mapping[str, Any], tokens: int) -> AreaVision:
    patch = _whole(settings, "patch_size", 14) * _whole(settings, "merge_size", 2)
    size = settings.get("size") or {}
    least = _whole(settings, "min_pixels", _whole(size, "shortest_edge", 56 * 56))
    most = _whole(settings, "max_pixels", _whole(size, "longest_edge", 28 * 28 * 1280))
    if least > most:
        raise ValueError(f"its smallest image has {least} pixels, and its largest {most}")
    most = min(most, tokens * patch**2)
    return AreaVision(placeholder, patch, min(least, most), most)


def _edge(placeholder: int, side: int, settings: Mapping[str, Any], tokens: int) -> EdgeVision:
    size = settings.get("size") or {"longest_edge": 1024}
    longest = min(_whole(size, "longest_edge"), math.isqrt(tokens) * side)
    return EdgeVision(placeholder, side, longest)


def _whole(values: Mapping[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    """The whole number at a key; the default if there is none. Raises `ValueError`."""
    if not isinstance(values, Mapping):
        raise ValueError(f"where {key} is to be there is {str(values)[:40]}")
    value = values.get(key)
    if value is None:
        value = default
    if type(value) is not int or not least <= value <= MOST_SIZE:
        raise ValueError(f"{key}: {str(value)[:40]} is no whole number from {least} to {MOST_SIZE}")
    return value


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raises `FileError`, which names the file, for a `ValueError`."""
    try:
        yield
    except ValueError as error:
        raise FileError(f"{path}: {error}") from error
