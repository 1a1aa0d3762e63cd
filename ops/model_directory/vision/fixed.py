"""Images that are all brought to one size."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ops.model_directory.vision.settings import SeeingModel
from ops.model_directory.vision.vision import Grid, UsualVision

CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""How many tokens a tower has beside those of patches, by its `model_type`."""


def drops_first(model: SeeingModel) -> int:
    """1 if the first token of a tower is left out, which is the class token in those that have one."""
    return int(model.config.values.get("vision_feature_select_strategy", "default") == "default")


@dataclass(frozen=True, slots=True)
class FixedVision(UsualVision):
    """Each image has as many tokens as any other: LLaVA 1.5."""

    side: int
    """Pixels of a side of what the tower sees."""
    tokens: int
    """Tokens of an image."""

    @classmethod
    def of(cls, model: SeeingModel) -> Self:
        """Raises `FileError`, and `TooManyTokens`."""
        settings, tower = model.processor, model.tower
        cropped = settings.flag("do_center_crop", "crop_size" in settings.values)
        side = settings.side("crop_size" if cropped else "size", 224)
        tokens = (side // tower.side("patch_size", 32)) ** 2 + CLASS_TOKENS[tower.values["model_type"]]
        tokens -= drops_first(model)
        if tokens < 1:
            raise settings.wrong(f"an image of {side} pixels a side has no tokens")
        model.images_of(tokens)
        return cls(model.placeholder, side, tokens)

    @property
    def largest(self) -> tuple[int, int]:
        return self.side, self.side

    def grid(self, width: int, height: int, low_detail: bool = False) -> Grid:
        return Grid(1, self.tokens)

    def options(self, grid: Grid) -> Mapping[str, Any]:
        return {}

    def run(self, grid: Grid) -> list[int | str]:
        return [self.placeholder] * (grid.rows * grid.columns)
