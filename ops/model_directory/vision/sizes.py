"""Images that keep their shape: from their size to that of what is seen."""

import math
from dataclasses import dataclass

from ops.model_directory.vision.vision import LOW_DETAIL, Grid, ImageError, PatchVision


@dataclass(frozen=True, slots=True)
class AreaVision(PatchVision):
    """Images keep their shape as far as whole patches allow, and their areas have bounds: Qwen's models."""

    least: int
    """Pixels of the smallest image."""
    most: int
    """Pixels of the largest one."""

    @property
    def in_grid(self) -> bool:
        return True

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

    def run(self, grid: Grid) -> list[int | str]:
        return [self.placeholder] * (grid.rows * grid.columns)


@dataclass(frozen=True, slots=True)
class EdgeVision(PatchVision):
    """Images are reduced until no edge is too long, and a token ends each row: Pixtral."""

    longest: int
    """Pixels of the longest edge."""
    row_end: str = "[IMG_BREAK]"
    """Token at the end of each row but the last one."""
    end: str = "[IMG_END]"
    """Token at the end of the last row."""

    @property
    def texts(self) -> tuple[str, ...]:
        return self.row_end, self.end

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        longest = min(self.longest, LOW_DETAIL) if low_detail else self.longest
        if (excess := max(height / longest, width / longest)) > 1:
            height, width = math.floor(height / excess), math.floor(width / excess)
        return Grid(max(1, math.ceil(height / self.patch)), max(1, math.ceil(width / self.patch)))

    def run(self, grid: Grid) -> list[int | str]:
        rows: list[int | str] = [*[self.placeholder] * grid.columns, self.row_end] * grid.rows
        return [*rows[:-1], self.end]
