"""How the model of a directory reads images: by its config.json and the settings of its image processor."""

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ops.model_directory.files import read_config, read_json
from ops.model_directory.vision.anyres import AnyResVision
from ops.model_directory.vision.fixed import CLASS_TOKENS, FixedVision, drops_first
from ops.model_directory.vision.frames import FrameVision
from ops.model_directory.vision.gemma import BudgetVision, SquareVision
from ops.model_directory.vision.settings import SeeingModel, Settings, TooManyTokens
from ops.model_directory.vision.sizes import AreaVision, EdgeVision
from ops.model_directory.vision.tiles import CropVision, SplitVision
from ops.model_directory.vision.vision import Vision

log = logging.getLogger(__name__)

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""Files that may have the settings of an image processor, the one that counts first."""


def read_vision(directory: Path, most: int) -> Vision | None:
    """How the model of a directory reads images; None if it is served without. Raises `FileError`.

    `most`: tokens of one image, at most, that see something.
    """
    path = directory / "config.json"
    config = read_config(path) if path.is_file() else {}
    match config.get("architectures"):
        case [str(name)] if name in _READERS and isinstance(config.get("vision_config"), Mapping):
            pass
        case _:
            return None
    if (found := _settings_in(directory)) is None:
        return None
    try:
        return _READERS[name](SeeingModel(Settings(path, config), Settings(*found), most))
    except TooManyTokens as error:
        log.warning("%s: %s: text alone is served", directory, error)
        return None


def _settings_in(directory: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The file with the settings of the model's image processor, as transformers finds it; and these."""
    whole, path = (directory / name for name in PROCESSOR_FILES)
    if whole.is_file() and isinstance(own := read_json(whole).get("image_processor"), Mapping):
        return whole, own
    return (path, read_json(path)) if path.is_file() else None


def _area(model: SeeingModel) -> AreaVision:
    settings, size = model.processor, model.processor.within("size")
    patch = settings.whole("patch_size", 14) * settings.whole("merge_size", 2)
    least = settings.whole("min_pixels", size.whole("shortest_edge", 56 * 56))
    most = settings.whole("max_pixels", size.whole("longest_edge", 28 * 28 * 1280))
    if least > most:
        raise settings.wrong(f"its smallest image has {least} pixels, and its largest {most}")
    most = min(most, model.most * patch**2)
    return AreaVision(model.placeholder, patch, min(least, most), most)


def _mistral(model: SeeingModel) -> EdgeVision:
    return _edge(model, model.config.whole("spatial_merge_size", 2))


def _llava(model: SeeingModel) -> Vision | None:
    match model.tower.values.get("model_type"):
        case str(kind) if kind in CLASS_TOKENS:
            return FixedVision.of(model)
        case "pixtral" if drops_first(model) == 0:
            return _edge(model, 1)
        case _:
            return None


def _llava_next(model: SeeingModel) -> AnyResVision | None:
    """Only with a token for each patch: others cannot be put together to rows."""
    match model.tower.values.get("model_type"):
        case str(kind) if kind in CLASS_TOKENS and CLASS_TOKENS[kind] == drops_first(model):
            return AnyResVision.of(model)
        case _:
            return None


def _edge(model: SeeingModel, merged: int) -> EdgeVision:
    """`merged`: patches at a side of what becomes one token."""
    placeholder, side = model.placeholder, model.tower.whole("patch_size", 16) * merged
    size = model.processor.within("size")
    longest = size.whole("longest_edge", None if size.values else 1024)
    return EdgeVision(placeholder, side, min(longest, math.isqrt(model.most) * side))


_READERS: Mapping[str, Callable[[SeeingModel], Vision | None]] = {
    **dict.fromkeys(
        (
            *("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
            *("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
            *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        ),
        _area,
    ),
    "Mistral3ForConditionalGeneration": _mistral,
    "LlavaForConditionalGeneration": _llava,
    "LlavaNextForConditionalGeneration": _llava_next,
    "Glm4vForConditionalGeneration": FrameVision.of,
    "Glm4vMoeForConditionalGeneration": FrameVision.of,
    "Glm46VForConditionalGeneration": FrameVision.of,
    "Idefics3ForConditionalGeneration": SplitVision.of,
    "SmolVLMForConditionalGeneration": SplitVision.of,
    "InternVLForConditionalGeneration": CropVision.of,
    "Gemma3ForConditionalGeneration": SquareVision.of,
    "Gemma4ForConditionalGeneration": BudgetVision.of,
}
"""How images are read, by the architecture."""
