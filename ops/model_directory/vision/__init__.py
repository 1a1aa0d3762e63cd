"""How models that see read images: to which size they bring them, and which tokens stand for them.

This is arithmetic with the sizes of an image, by the model's config.json and the settings of its image
processor. The tokenizer does it, and tells the worker, whose vision tower reads the image itself
(`gpu_worker/models/vision.py`).
"""

from ops.model_directory.vision.anyres import AnyResVision
from ops.model_directory.vision.fixed import FixedVision
from ops.model_directory.vision.frames import FrameVision
from ops.model_directory.vision.gemma import BudgetVision, SquareVision
from ops.model_directory.vision.read import PROCESSOR_FILES, read_vision
from ops.model_directory.vision.sizes import AreaVision, EdgeVision
from ops.model_directory.vision.tiles import CropVision, SplitVision
from ops.model_directory.vision.vision import (
    LOW_DETAIL,
    TEXT_ALONE,
    Grid,
    ImageError,
    Together,
    Vision,
)

__all__ = [
    "LOW_DETAIL",
    "PROCESSOR_FILES",
    "TEXT_ALONE",
    "AnyResVision",
    "AreaVision",
    "BudgetVision",
    "CropVision",
    "EdgeVision",
    "FixedVision",
    "FrameVision",
    "Grid",
    "ImageError",
    "SplitVision",
    "SquareVision",
    "Together",
    "Vision",
    "read_vision",
]
