"""The vision tower of a model that sees: transformers' own, with what brings its results to the decoder's
size.

An image is opened, resized and cut into patches on the host. Then the tower sees it: beside steps, see
`gpu_worker/step/images.py`.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from gpu_worker.errors import ModelError, line_of
from gpu_worker.models.checkpoint import Checkpoint, open_checkpoint
from gpu_worker.models.formats.format import Format
from gpu_worker.models.lazy_tensor import LazyTensor, with_tensors
from gpu_worker.models.sight import Sight
from gpu_worker.models.wrapped import tower_tensors
from ops.model_directory.files import FileError, read_config
from ops.model_directory.image_files import opened
from ops.model_directory.vision import TEXT_ALONE, Grid, ImageError, Vision, read_vision

_SECTIONS = {
    **dict.fromkeys(("Qwen2VL", "Qwen2_5_VL"), (16, 24, 24)),
    **dict.fromkeys(("Qwen3VL", "Qwen3VLMoe"), (24, 20, 20)),
    **dict.fromkeys(("Qwen3_5", "Qwen3_5Moe"), (11, 11, 10)),
    **dict.fromkeys(("Glm4v", "Glm4vMoe", "Glm46V"), (8, 12, 12)),
}
"""Pairs that are rotated by place, row and column, where config.json does not say."""

_MOST_PAIRS = 1024

_LANGUAGE_MODELS = ("language_model", "text_model")
"""Names of the part of a model that is its language model."""

log = logging.getLogger(__name__)

Prepared = Mapping[str, Tensor]
"""What the tower takes."""


class Tower:
    """A vision tower."""

    def __init__(
        self,
        model: Any,
        processor: Any,
        vision: Vision,
        axes: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """`model`: of transformers, without its language model. `processor`: its image processor."""
        self.vision = vision
        self.axes = axes
        """Of what is seen in a grid: see `rope.GridLines`."""
        self.between_parts: Callable[[], None] = _go_on
        """Is called before each part of the tower computes."""
        self._model, self._processor = model.eval().to(device), processor
        self._takes = inspect.signature(model.get_image_features).parameters.keys()
        self._device, self._dtype = device, dtype
        for part in _parts(model):
            part.register_forward_pre_hook(lambda *_: self.between_parts())

    @property
    def most_tokens(self) -> int:
        """Tokens of the run of the largest image."""
        return len(self.vision.run(self.vision.grid(*self.vision.largest)))

    def rehearse(self) -> None:
        """See an image as large as images may be, for the memory that this takes."""
        largest = self.vision.largest
        grid = self.vision.grid(*largest)
        self.see(self._prepared(Image.new("RGB", self.vision.size(grid) or largest), grid))

    def prepare(self, data: bytes, grid: Grid) -> Prepared:
        """From an image's file to what the tower takes, on the host. Raises `ImageError`."""
        try:
            image = opened(data)
            if (size := self.vision.size(grid)) is not None:
                image = image.resize(size, self._processor.resample)
            return self._prepared(image, grid)
        except ImageError:
            raise
        except Exception as error:  # whatever libraries raise over it, it is this image's alone
            raise ImageError(f"an image cannot be prepared: {line_of(error)}") from error

    def _prepared(self, image: Image.Image, grid: Grid) -> Prepared:
        """`image` has the size of its grid, unless the image processor brings it there."""
        found = self._processor(images=[image], return_tensors="pt", **self.vision.options(grid))
        return {name: found[name] for name in found.keys() & self._takes}

    @torch.inference_mode()
    def see(self, prepared: Prepared) -> Sight:
        """What is seen in one image."""
        given = {name: each.to(self._device) for name, each in prepared.items()}
        given["pixel_values"] = given["pixel_values"].to(self._dtype)
        found = self._model.get_image_features(**given)
        # One tensor for each image, or for each of its tiles, or all in one.
        vectors = torch.cat([each.flatten(0, -2) for each in found.pooler_output])
        deeper = getattr(found, "deepstack_features", None) or ()
        return Sight(vectors, tuple(each for (each,) in deeper))

    @property
    def nbytes(self) -> int:
        """Bytes of its weights."""
        return sum(each.nbytes for each in self._model.parameters())


def _go_on() -> None:
    """Nobody else wants to compute."""


def _parts(model: Any) -> Iterator[torch.nn.Module]:
    """Parts of a tower that compute one after the other: the parts of its layers."""
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList):
            for layer in module:
                yield from list(layer.children()) or [layer]


def load_tower(
    directory: Path, most: int, form: Format | None, device: torch.device, dtype: torch.dtype
) -> Tower | None:
    """The vision tower of a model directory; None if the model is served without.

    `most`: tokens of one image that see something. `form`: how weights are quantized; here they are
    dequantized. `dtype`: of weights and activations. Raises `ModelError`.
    """
    try:
        if (vision := read_vision(directory, most)) is None:
            return None
        config = read_config(directory / "config.json")
        (architecture,) = config["architectures"]
    except FileError as error:
        raise ModelError(f"{error} ({TEXT_ALONE})") from error
    import transformers

    kind = getattr(transformers, architecture)
    try:
        processor = transformers.AutoImageProcessor.from_pretrained(
            directory, backend="pil", local_files_only=True, trust_remote_code=False
        )
        with open_checkpoint(directory, form, part=tower_tensors) as checkpoint:
            if not checkpoint.names():  # who made the checkpoint has left it out
                log.warning("%s: there is no vision tower: text alone is served", directory)
                return None
            model = _loaded(kind, _config_of(kind, directory), checkpoint, dtype)
    except ModelError as error:
        what = f"the vision tower of {architecture}: {error} ({TEXT_ALONE})"
        raise ModelError(f"{directory}: {what}") from error
    except Exception as error:  # transformers raises errors of all kinds
        what = f"transformers cannot load the vision tower of {architecture}: {line_of(error)} ({TEXT_ALONE})"
        raise ModelError(f"{directory}: {what}") from error
    return Tower(model, processor, vision, _axes(config), device, dtype)


def _axes(config: Mapping[str, Any]) -> tuple[int, ...]:
    """See `rope.GridLines`: as the model's sections say, in a row or, in later models, by turns. Raises
    `ModelError`."""
    text = config.get("text_config", config)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    name = config["architectures"][0].partition("For")[0]
    match sections := rope.get("mrope_section") or _SECTIONS.get(name, (0, 0, 0)):
        case [int(place), int(rows), int(columns)] if min(sections) >= 0 and max(sections) <= _MOST_PAIRS:
            pass
        case _:
            raise ModelError(
                f"config.json: mrope_section is {str(sections)[:80]}, not three numbers of pairs"
            )
    if not name.startswith("Qwen3"):
        return (*[0] * place, *[1] * rows, *[2] * columns)
    axes = [0] * sum(sections)
    for axis, count in ((1, rows), (2, columns)):
        for pair in range(axis, min(3 * count, len(axes)), 3):
            axes[pair] = axis
    return tuple(axes)


def _config_of(kind: Any, directory: Path) -> Any:
    """The model's configuration, whose language model has no layers and one token."""
    config = kind.config_class.from_pretrained(directory, local_files_only=True)
    if hasattr(config, "quantization_config"):
        delattr(config, "quantization_config")
    text = config.get_text_config()
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None
    text.layer_types = []
    return config


def _loaded(kind: Any, config: Any, checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """The model without its language model. Raises `ModelError` for missing tensors, which transformers would
    draw by chance."""
    with torch.device("meta"):
        skeleton = kind._from_config(config)
    tensors: dict[str, Any] = {
        name: torch.zeros(each.shape) for name, each in skeleton.state_dict().items() if _is_text(name)
    }
    tensors |= {name: LazyTensor(checkpoint, name, dtype) for name in checkpoint.weights()}
    model, report = with_tensors(kind, config, tensors, dtype)
    if missing := sorted(name for name in report["missing_keys"] if not _is_text(name)):
        raise ModelError(f"tensor {missing[0]} is missing from the checkpoint")
    if unknown := sorted(report["unexpected_keys"]):
        raise ModelError(f"config.json does not account for tensor {unknown[0]}")
    for name in _LANGUAGE_MODELS:
        if hasattr(model.model, name):
            setattr(model.model, name, None)
    return model.model


def _is_text(name: str) -> bool:
    """Whether a tensor is of the language model."""
    return name.startswith(("lm_head.", *(f"model.{each}." for each in _LANGUAGE_MODELS)))
