"""Images that are cut into tiles of one size, with the whole image beside them, as small as a tile.

    tile     tile     tile
    tile     tile     tile         whole image

A grid has rows and columns of tiles. The image processor resizes and cuts; its options follow from the grid.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, Self

from ops.model_directory.vision.settings import SeeingModel
from ops.model_directory.vision.vision import Grid, UsualVision

ALONE = Grid(1, 1)
"""An image that is not cut."""

LONGEST = 4096
"""Pixels of a side of the largest image that Idefics 3 cuts."""


@dataclass(frozen=True, slots=True)
class SplitVision(UsualVision):
    """The longer side is brought to a length, and the image is cut: Idefics 3, SmolVLM.

    Each tile's row and column is written before it. An image of low detail is not cut.
    """

    tile: int
    """Pixels of a side of a tile, an even number."""
    tokens: int
    """Tokens of a tile."""
    longest: int
    """Pixels of the longer side before the image is cut."""
    tiles: int
    """Tiles of an image, at most, with the whole one; 1: images are not cut."""
    begin: str = "<fake_token_around_image>"
    """Token before each tile, and behind the last one."""
    whole: str = "<global-img>"
    """Token before the whole image."""

    @classmethod
    def of(cls, model: SeeingModel) -> Self:
        """Raises `FileError`, and `TooManyTokens`."""
        settings = model.processor
        tile = settings.within("max_image_size").whole("longest_edge", 364)
        longest = min(settings.within("size").whole("longest_edge", 4 * 364), LONGEST)
        patches, factor = tile // model.tower.whole("patch_size", 32), model.config.whole("scale_factor", 2)
        if tile % 2 or not patches or patches % factor:
            what = f"tiles of {tile} pixels, which is odd, or no whole number of tokens"
            raise settings.wrong(f"max_image_size: {what}")
        tokens = (patches // factor) ** 2
        tiles = model.images_of(tokens)
        return cls(
            model.placeholder,
            tile,
            tokens,
            longest,
            tiles if settings.flag("do_image_splitting", True) else 1,
        )

    @property
    def texts(self) -> tuple[str, ...]:
        if self.tiles == 1:
            return self.begin, self.whole
        sides = range(1, self._tiles_of(self.longest) + 1)
        places = (_place(row, column) for row, column in product(sides, sides))
        return self.begin, self.whole, "\n", "\n\n", *places

    @property
    def largest(self) -> tuple[int, int]:
        sides = range(1, self._tiles_of(self.longest) + 1)
        fitting = [
            (rows * columns, columns * self.tile, rows * self.tile)
            for rows, columns in product(sides, sides)
            if rows * columns < self.tiles
        ]
        return max(fitting, default=(1, self.tile, self.tile))[1:]

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        if low_detail:
            return ALONE
        for side in range(self._tiles_of(self.longest), 1, -1):
            grid = self._cut(width, height, self._edge(side))
            if grid.rows * grid.columns < self.tiles:
                return grid
        return ALONE

    def options(self, grid: Grid) -> Mapping[str, Any]:
        if grid == ALONE:
            return {"do_image_splitting": False}
        edge = self._edge(max(grid.rows, grid.columns))
        return {"do_image_splitting": True, "size": {"longest_edge": edge}}

    def run(self, grid: Grid) -> list[int | str]:
        seen: list[int | str] = [self.placeholder] * self.tokens
        run = list[int | str]()
        if grid != ALONE:
            for row in range(1, grid.rows + 1):
                for column in range(1, grid.columns + 1):
                    run += [self.begin, _place(row, column), *seen]
                run.append("\n" if row < grid.rows else "\n\n")
        return [*run, self.begin, self.whole, *seen, self.begin]

    def _tiles_of(self, pixels: int) -> int:
        return math.ceil(pixels / self.tile)

    def _edge(self, side: int) -> int:
        """Pixels of the longer side of an image, if `side` tiles lie along it."""
        return min(side * self.tile, self.longest)

    def _cut(self, width: int, height: int, edge: int) -> Grid:
        # In the order in which transformers divides, or what is rounded may differ.
        ratio = width / height
        if width >= height:
            width, height = edge, int(edge / ratio)
            height += height % 2
        else:
            width, height = int(edge * ratio), edge
            width += width % 2
        width, height = max(width, 1), max(height, 1)
        ratio, tile = width / height, self.tile
        if width >= height:
            columns = self._tiles_of(width)
            return Grid(self._tiles_of(int(columns * tile / ratio)), columns)
        rows = self._tiles_of(height)
        return Grid(rows, self._tiles_of(int(rows * tile * ratio)))


@dataclass(frozen=True, slots=True)
class CropVision(UsualVision):
    """The image is stretched to the rows and columns of tiles whose shape is nearest, and cut: InternVL.

    An image of low detail is stretched to one tile.
    """

    tile: int
    """Pixels of a side of a tile."""
    tokens: int
    """Tokens of a tile."""
    least: int
    """Tiles of an image, at least, without the whole one."""
    most: int
    """Tiles of an image, at most, without the whole one; 1: images are not cut."""
    begin: str = "<img>"
    """Token before the image."""
    end: str = "</img>"
    """Token behind it."""

    @classmethod
    def of(cls, model: SeeingModel) -> Self:
        """Raises `FileError`, and `TooManyTokens`."""
        settings, config = model.processor, model.config
        tile = settings.side("size", 384)
        patches, ratio = (
            tile // model.tower.side("patch_size", 14),
            config.values.get("downsample_ratio", 0.5),
        )
        if not isinstance(ratio, int | float) or not 0 < ratio <= 1 or patches * ratio % 1 or not patches:
            raise config.wrong(f"downsample_ratio: {str(ratio)[:40]} of {patches} patches is no whole number")
        tokens = int(patches * ratio) ** 2
        most = min(settings.whole("max_patches", 12), max(1, model.images_of(tokens) - 1))
        return cls(model.placeholder, tile, tokens, min(settings.whole("min_patches", 1), most), most)

    @property
    def texts(self) -> tuple[str, ...]:
        return self.begin, self.end

    @property
    def largest(self) -> tuple[int, int]:
        columns, rows = _shapes(self.least, self.most)[-1]
        return columns * self.tile, rows * self.tile

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        if low_detail or self.most == 1:
            return ALONE
        least, best, area = math.inf, (1, 1), width * height
        for columns, rows in _shapes(self.least, self.most):
            apart = abs(width / height - columns / rows)
            if apart < least or (apart == least and area > 0.5 * self.tile**2 * columns * rows):
                least, best = apart, (columns, rows)
        return Grid(best[1], best[0])

    def options(self, grid: Grid) -> Mapping[str, Any]:
        if grid == ALONE:
            return {"crop_to_patches": False}
        return {"crop_to_patches": True, "min_patches": self.least, "max_patches": self.most}

    def run(self, grid: Grid) -> list[int | str]:
        tiles = 1 if grid == ALONE else grid.rows * grid.columns + 1
        return [self.begin, *[self.placeholder] * (self.tokens * tiles), self.end]


@cache
def _shapes(least: int, most: int) -> list[tuple[int, int]]:
    """Columns and rows that tiles may be in, those of few tiles first."""
    shapes = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(math.ceil(least / columns), most // columns + 1)
    ]
    return sorted(shapes, key=math.prod)


def _place(row: int, column: int) -> str:
    return f"<row_{row}_col_{column}>"
