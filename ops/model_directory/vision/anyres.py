"""Images that are brought to the best of some sizes and cut into tiles, of which what was padded is left out.

    whole image     row, end of row     row, end of row     ...

Tiles are put together before the model reads them, so rows go through all of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ops.model_directory.vision.settings import SeeingModel
from ops.model_directory.vision.vision import Grid, ImageError, UsualVision

USUAL = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
"""Heights and widths that transformers has where a configuration has none."""


@dataclass(frozen=True, slots=True)
class AnyResVision(UsualVision):
    """LLaVA-NeXT (Liu et al. 2024, "AnyRes")."""

    patch: int
    """Pixels of a side of what becomes one token."""
    tile: int
    """Pixels of a side of a tile, and of the whole image as it is seen."""
    sizes: tuple[tuple[int, int], ...]
    """Heights and widths to which an image may be brought, in pixels."""

    @classmethod
    def of(cls, model: SeeingModel) -> Self:
        """Raises `FileError`, and `TooManyTokens`."""
        config, tower = model.config, model.tower
        tile, patch = tower.side("image_size", 336), tower.side("patch_size", 14)
        given = config.values.get("image_grid_pinpoints") or USUAL
        sizes = list[tuple[int, int]]()
        for each in given if isinstance(given, list | tuple) else [given]:
            match each:
                case [int(height), int(width)] if min(height, width) >= tile:
                    sizes.append((height, width))
                case _:
                    raise config.wrong(f"image_grid_pinpoints: {str(each)[:40]} is no height and width")
        if tile < patch or any(side % tile for size in sizes for side in size):
            raise config.wrong(f"image_grid_pinpoints: not all are whole tiles of {tile} pixels")
        vision = cls(model.placeholder, patch, tile, tuple(sizes))
        model.images_of(vision.tokens(vision.grid(*vision.largest)))
        return vision

    @property
    def largest(self) -> tuple[int, int]:
        height, width = max(self.sizes, key=lambda size: (size[0] * size[1], size[0]))
        return width, height

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        # In the order in which transformers divides, or what is rounded may differ.
        tall, wide = self._best(width, height)
        side = self.tile // self.patch
        rows, columns = tall // self.tile * side, wide // self.tile * side
        if width / height > columns / rows:
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        if not rows or not columns:
            raise _narrow(width, height)
        return Grid(rows, columns)

    def tokens(self, grid: Grid) -> int:
        """Of an image, with the ends of rows."""
        return (self.tile // self.patch) ** 2 + grid.rows * (grid.columns + 1)

    def options(self, grid: Grid) -> Mapping[str, Any]:
        return {"image_grid_pinpoints": [list(size) for size in self.sizes]}

    def run(self, grid: Grid) -> list[int | str]:
        return [self.placeholder] * self.tokens(grid)

    def _best(self, width: int, height: int) -> tuple[int, int]:
        """Height and width at which most of the image's pixels are kept, and of these the smallest."""
        best, kept, wasted = None, 0, math.inf
        for tall, wide in self.sizes:
            scale = min(wide / width, tall / height)
            keeps = min(int(width * scale) * int(height * scale), width * height)
            wastes = tall * wide - keeps
            if keeps > kept or (keeps == kept and wastes < wasted):
                best, kept, wasted = (tall, wide), keeps, wastes
        if best is None or not kept:
            raise _narrow(width, height)
        return best


def _narrow(width: int, height: int) -> ImageError:
    return ImageError(f"{width} by {height} pixels: one side is much longer than the other")
