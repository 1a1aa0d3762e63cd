"""How Gemma's models read images: Gemma 3 as squares of one size, Gemma 4 in their own shape."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ops.runtime.vision.values import token, whole
from ops.runtime.vision.vision import LOW_DETAIL, Grid, Together

BUDGETS = (1120, 560, 280, 140, 70)
"""Tokens of an image that Gemma 4 knows."""


@dataclass(frozen=True, slots=True)
class SquareVision:
    """All images have one size, whatever their shape: Gemma 3."""

    placeholder: int
    written: int
    """Begins an image, too."""
    end: int
    """Id of the token at the end of an image."""
    side: int
    """Rows and columns of what is seen."""
    pixels: tuple[int, int]
    """Width and height to which images are brought."""
    around: str = "\n\n"
    in_grid: bool = False
    together: Together = "everywhere"

    @classmethod
    def read(cls, config: Mapping[str, Any], settings: Mapping[str, Any], tokens: int) -> Self:
        """See `Reader`."""
        count = whole(config, "mm_tokens_per_image", 256)
        size = settings.get("size") or {}
        if (side := math.isqrt(count)) ** 2 != count or count > tokens:
            raise ValueError(f"mm_tokens_per_image: {count} is no square of at most {tokens}")
        begin, end = token(config, "boi_token", 255_999), token(config, "eoi_token", 256_000)
        pixels = whole(size, "width", 224), whole(size, "height", 224)
        return cls(token(config, "image_token", 262_144), begin, end, side, pixels)

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        return Grid(self.side, self.side)

    def size(self, grid: Grid) -> tuple[int, int]:
        return self.pixels

    def run(self, grid: Grid) -> list[int | str]:
        return [self.written, *[self.placeholder] * (grid.rows * grid.columns), self.end]


@dataclass(frozen=True, slots=True)
class BudgetVision:
    """Images keep their shape, and fill a budget of tokens as far as whole ones allow: Gemma 4."""

    placeholder: int
    begin: int
    """Id of the token at the beginning of an image."""
    end: int
    """Id of the token at the end of an image."""
    patch: int
    """Pixels of a side of what becomes one token."""
    budget: int
    """Tokens of an image."""
    together: Together = "nowhere"
    around: str = ""
    in_grid: bool = False

    @classmethod
    def read(cls, config: Mapping[str, Any], settings: Mapping[str, Any], tokens: int) -> Self:
        """See `Reader`."""
        patch = whole(settings, "patch_size", 16) * whole(settings, "pooling_kernel_size", 3)
        most = min(tokens, whole(settings, "max_soft_tokens", 280))
        budget = next((each for each in BUDGETS if each <= most), most)
        begin, end = token(config, "boi_token", 255_999), token(config, "eoi_token", 258_882)
        text = config.get("text_config")
        sees = isinstance(text, Mapping) and text.get("use_bidirectional_attention") == "vision"
        return cls(
            *(token(config, "image_token", 258_880), begin, end, patch, budget),
            "in windows" if sees else "nowhere",
        )

    @property
    def written(self) -> int:
        return self.placeholder

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        budget = min(self.budget, LOW_DETAIL**2 // self.patch**2) if low_detail else self.budget
        # In the order in which transformers divides, or what is rounded may differ.
        scale = math.sqrt(budget * self.patch**2 / (height * width))
        rows, columns = (math.floor(scale * side / self.patch) for side in (height, width))
        if not rows:
            return Grid(1, min(max(1, math.floor(width / height)), budget))
        if not columns:
            return Grid(min(max(1, math.floor(height / width)), budget), 1)
        return Grid(rows, columns)

    def size(self, grid: Grid) -> tuple[int, int]:
        return grid.columns * self.patch, grid.rows * self.patch

    def run(self, grid: Grid) -> list[int | str]:
        return [self.begin, *[self.placeholder] * (grid.rows * grid.columns), self.end]
