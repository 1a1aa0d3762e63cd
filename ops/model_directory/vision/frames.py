"""Images that are read as short videos are: bounds are those of all frames together."""

import math
from dataclasses import dataclass
from typing import Self

from ops.model_directory.vision.settings import SeeingModel
from ops.model_directory.vision.sizes import AreaVision
from ops.model_directory.vision.vision import LOW_DETAIL, Grid, ImageError


@dataclass(frozen=True, slots=True)
class FrameVision(AreaVision):
    """As `AreaVision`, with bounds of the pixels of all frames: GLM 4.1V and its successors."""

    frames: int = 2
    """Frames that an image is taken for (temporal_patch_size)."""

    @classmethod
    def of(cls, model: SeeingModel) -> Self:
        """Raises `FileError`, and `TooManyTokens`."""
        settings, size = model.processor, model.processor.within("size")
        patch = settings.whole("patch_size", 14) * settings.whole("merge_size", 2)
        frames = settings.whole("temporal_patch_size", 2)
        least = size.whole("shortest_edge", None if size.values else 112 * 112)
        most = size.whole("longest_edge", None if size.values else 28 * 28 * 15000)
        if least > most:
            raise settings.wrong(f"its smallest image has {least} pixels, and its largest {most}")
        most = min(most, frames * model.images_of(1) * patch**2)
        return cls(model.placeholder, patch, min(least, most), most, frames=frames)

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        # In the order in which transformers rounds and divides, or the result may differ.
        patch, frames, given = self.patch, self.frames, f"{width} by {height} pixels"
        if min(width, height) < patch:
            scale = max(patch / height, patch / width)
            width, height = int(width * scale), int(height * scale)
        if max(width, height) / min(width, height) > 200:
            raise ImageError(f"{given}: one side is more than 200 times the other")
        most = min(self.most, frames * LOW_DETAIL**2) if low_detail else self.most
        rows, columns = round(height / patch), round(width / patch)
        if frames * rows * columns * patch**2 > most:
            scale = math.sqrt((frames * height * width) / most)
            return Grid(max(1, math.floor(height / scale / patch)), max(1, math.floor(width / scale / patch)))
        if frames * rows * columns * patch**2 < self.least:
            scale = math.sqrt(self.least / (frames * height * width))
            return Grid(math.ceil(height * scale / patch), math.ceil(width * scale / patch))
        return Grid(rows, columns)
