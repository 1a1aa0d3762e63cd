"""How models that see read images: to which size they bring them, and which tokens stand for them.

This is arithmetic with the sizes of an image, by the model's config.json and the settings of its image
processor. The tokenizer does it, and tells the worker, whose vision tower reads the image itself
(`gpu_worker/models/vision.py`).
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ops.runtime.model_files import MOST_SIZE, FileError, read_config, read_json

MAX_ROWS_AND_COLUMNS = 2048
"""Of what is seen in one image, rows times columns. Larger images are reduced; models may have a lower
limit."""
LOW_DETAIL = 512
"""Pixels of a side of the square whose area an image of low detail has at most."""


class ImageError(Exception):
    """An image that the model cannot read. The message is for its sender."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What is seen in an image."""

    rows: int
    columns: int


class Vision(Protocol):
    """How one model reads images."""

    @property
    def placeholder(self) -> int:
        """Id of the token in place of which the model reads what it sees. A chat template writes one for a
        whole image."""

    @property
    def in_grid(self) -> bool:
        """What is seen has positions in rows and columns: see `gpu_worker/models/rope.py`."""

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        """What is seen in an image of so many pixels. Raises `ImageError`."""

    def size(self, grid: Grid) -> tuple[int, int]:
        """Width and height, in pixels, to which the image is brought."""

    def run(self, grid: Grid) -> list[int | str]:
        """The tokens that stand for it in the prompt: ids, or names of special tokens."""


@dataclass(frozen=True, slots=True)
class AreaVision:
    """Images keep their shape as far as whole patches allow, and their areas have bounds: Qwen's models."""

    placeholder: int
    patch: int
    """Pixels of a side of what becomes one token."""
    least: int
    """Pixels of the smallest image."""
    most: int
    """Pixels of the largest one."""
    in_grid: bool = True

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        if max(width, height) > 200 * min(width, height):
            raise ImageError(f"{width} by {height} pixels: one side is more than 200 times the other")
        most = min(self.most, LOW_DETAIL**2) if low_detail else self.most
        patch = self.patch
        rows, columns = round(height / patch), round(width / patch)
        # In the order in which transformers divides, or what is rounded may differ.
        if rows * columns * patch**2 > most:
            scale = math.sqrt(height * width / most)
            return Grid(max(1, math.floor(height / scale / patch)), max(1, math.floor(width / scale / patch)))
        if rows * columns * patch**2 < self.least:
            scale = math.sqrt(self.least / (height * width))
            return Grid(math.ceil(height * scale / patch), math.ceil(width * scale / patch))
        return Grid(rows, columns)

    def size(self, grid: Grid) -> tuple[int, int]:
        return grid.columns * self.patch, grid.rows * self.patch

    def run(self, grid: Grid) -> list[int | str]:
        return [self.placeholder] * (grid.rows * grid.columns)


@dataclass(frozen=True, slots=True)
class EdgeVision:
    """Images are reduced until no edge is too long, and a token ends each row: Pixtral."""

    placeholder: int
    patch: int
    """Pixels of a side of what becomes one token."""
    longest: int
    """Pixels of the longest edge."""
    row_end: str = "[IMG_BREAK]"
    """Token at the end of each row but the last one."""
    end: str = "[IMG_END]"
    """Token at the end of the last row."""
    in_grid: bool = False

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        longest = min(self.longest, LOW_DETAIL) if low_detail else self.longest
        if (excess := max(height / longest, width / longest)) > 1:
            height, width = math.floor(height / excess), math.floor(width / excess)
        return Grid(max(1, math.ceil(height / self.patch)), max(1, math.ceil(width / self.patch)))

    def size(self, grid: Grid) -> tuple[int, int]:
        return grid.columns * self.patch, grid.rows * self.patch

    def run(self, grid: Grid) -> list[int | str]:
        rows: list[int | str] = [*[self.placeholder] * grid.columns, self.row_end] * grid.rows
        return [*rows[:-1], self.end]


_AREAS = frozenset(
    (
        *("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        *("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
        *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
    )
)
_EDGES = frozenset(("Mistral3ForConditionalGeneration",))


def read_vision(directory: Path) -> Vision | None:
    """How the model of a directory reads images; None if it is served without. Raises `FileError`."""
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
        return _area(placeholder, settings) if name in _AREAS else _edge(placeholder, side, settings)


def processor_settings(directory: Path) -> Mapping[str, Any] | None:
    """Settings of the model's image processor, as transformers finds them; None if it has none."""
    found = _settings_in(directory)
    return None if found is None else found[1]


def _settings_in(directory: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The file with the settings, and the settings."""
    whole = directory / "processor_config.json"
    if whole.is_file() and isinstance(own := read_json(whole).get("image_processor"), Mapping):
        return whole, own
    path = directory / "preprocessor_config.json"
    return (path, read_json(path)) if path.is_file() else None


def _area(placeholder: int, settings: Mapping[str, Any]) -> AreaVision:
    patch = _whole(settings, "patch_size", 14) * _whole(settings, "merge_size", 2)
    size = settings.get("size") or {}
    least = _whole(settings, "min_pixels", _whole(size, "shortest_edge", 56 * 56))
    most = _whole(settings, "max_pixels", _whole(size, "longest_edge", 28 * 28 * 1280))
    if least > most:
        raise ValueError(f"its smallest image has {least} pixels, and its largest {most}")
    most = min(most, MAX_ROWS_AND_COLUMNS * patch**2)
    return AreaVision(placeholder, patch, min(least, most), most)


def _edge(placeholder: int, side: int, settings: Mapping[str, Any]) -> EdgeVision:
    size = settings.get("size") or {"longest_edge": 1024}
    longest = min(_whole(size, "longest_edge"), math.isqrt(MAX_ROWS_AND_COLUMNS) * side)
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
