"""How Gemma's models read images: Gemma 3 as squares of one size, Gemma 4 in their own shape."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ops.model_directory.vision.settings import SeeingModel, Settings
from ops.model_directory.vision.vision import LOW_DETAIL, Grid, PatchVision, Together, UsualVision

BUDGETS = (1120, 560, 280, 140, 70)
"""Tokens of an image that Gemma 4 knows."""


@dataclass(frozen=True, slots=True)
class SquareVision(UsualVision):
    """All images have one size, whatever their shape: Gemma 3."""

    begin: int
    """Id of the token at the beginning of an image, which the chat template writes."""
    end: int
    """Id of the token at the end of an image."""
    side: int
    """Rows and columns of what is seen."""
    pixels: tuple[int, int]
    """Width and height to which images are brought."""

    @classmethod
    def of(cls, model: SeeingModel) -> Self:
        """Raises `FileError` and `TooManyTokens`."""
        count = model.config.whole("mm_tokens_per_image", 256)
        model.images_of(count)
        if (side := math.isqrt(count)) ** 2 != count:
            raise model.config.wrong(f"mm_tokens_per_image: {count} is no square")
        size = model.processor.within("size")
        return cls(
            _token(model.config, "image_token", 262_144),
            _token(model.config, "boi_token", 255_999),
            _token(model.config, "eoi_token", 256_000),
            side,
            (size.whole("width", 224), size.whole("height", 224)),
        )

    @property
    def written(self) -> int:
        return self.begin

    @property
    def around(self) -> str:
        return "\n\n"

    @property
    def together(self) -> Together:
        return "everywhere"

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        return Grid(self.side, self.side)

    def size(self, grid: Grid) -> tuple[int, int]:
        return self.pixels

    def options(self, grid: Grid) -> Mapping[str, Any]:
        return {"do_resize": False}

    def run(self, grid: Grid) -> list[int | str]:
        return [self.begin, *[self.placeholder] * (grid.rows * grid.columns), self.end]


@dataclass(frozen=True, slots=True)
class BudgetVision(PatchVision):
    """Images keep their shape, and fill a budget of tokens as far as whole ones allow: Gemma 4."""

    begin: int
    """Id of the token at the beginning of an image."""
    end: int
    """Id of the token at the end of an image."""
    budget: int
    """Tokens of an image."""
    together: Together = "nowhere"

    @classmethod
    def of(cls, model: SeeingModel) -> Self:
        """Raises `FileError` and `TooManyTokens`."""
        settings = model.processor
        patch = settings.whole("patch_size", 16) * settings.whole("pooling_kernel_size", 3)
        model.images_of(BUDGETS[-1])
        most = min(model.most, settings.whole("max_soft_tokens", 280))
        text = model.config.within("text_config").values
        return cls(
            _token(model.config, "image_token", 258_880),
            patch,
            _token(model.config, "boi_token", 255_999),
            _token(model.config, "eoi_token", 258_882),
            next((each for each in BUDGETS if each <= most), most),
            "in windows" if text.get("use_bidirectional_attention") == "vision" else "nowhere",
        )

    @property
    def largest(self) -> tuple[int, int]:
        return self.budget * self.patch, self.patch

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

    def run(self, grid: Grid) -> list[int | str]:
        return [self.begin, *[self.placeholder] * (grid.rows * grid.columns), self.end]


def _token(config: Settings, name: str, default: int) -> int:
    """Id of a token, whose key ends with `_id` in newer files and with `_index` in others. Raises
    `FileError`."""
    key = f"{name}_id" if f"{name}_id" in config.values else f"{name}_index"
    return config.whole(key, default, least=0)
