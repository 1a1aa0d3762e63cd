"""How the model of a directory reads images: by its config.json and the settings of its image processor."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ops.runtime.model_files import FileError, read_config, read_json
from ops.runtime.vision.gemma import BudgetVision, SquareVision
from ops.runtime.vision.sizes import AreaVision, EdgeVision
from ops.runtime.vision.vision import Vision

PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
"""Files that may have the settings of an image processor, the one that counts first."""

Reader = Callable[[Mapping[str, Any], Mapping[str, Any], int], Vision]
"""From config.json, settings of the image processor, and tokens of an image at most. Raises `ValueError`."""

_READERS: Mapping[str, Reader] = {
    **dict.fromkeys(
        (
            *("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
            *("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"),
            *("Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForConditionalGeneration"),
        ),
        AreaVision.read,
    ),
    "Mistral3ForConditionalGeneration": EdgeVision.read,
    "Gemma3ForConditionalGeneration": SquareVision.read,
    "Gemma4ForConditionalGeneration": BudgetVision.read,
}
"""By the architecture of the whole model."""


def read_vision(directory: Path, most: int) -> Vision | None:
    """How the model of a directory reads images; None if it is served without. Raises `FileError`.

    `most`: tokens of one image, at most, that see something.
    """
    path = directory / "config.json"
    config = read_config(path) if path.is_file() else {}
    match config.get("architectures"):
        case [str(name)] if name in _READERS:
            pass
        case _:
            return None
    found = _settings_in(directory)
    if found is None or not isinstance(config.get("vision_config"), Mapping):
        return None
    try:
        return _READERS[name](config, found[1], most)
    except ValueError as error:
        raise FileError(f"{path}, {found[0].name}: {error}") from error


def processor_settings(directory: Path) -> Mapping[str, Any] | None:
    """Settings of the model's image processor, as transformers finds them; None if it has none."""
    found = _settings_in(directory)
    return None if found is None else found[1]


def _settings_in(directory: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """The file with the settings, and the settings."""
    whole, path = (directory / name for name in PROCESSOR_FILES)
    if whole.is_file() and isinstance(own := read_json(whole).get("image_processor"), Mapping):
        return whole, own
    return (path, read_json(path)) if path.is_file() else None
