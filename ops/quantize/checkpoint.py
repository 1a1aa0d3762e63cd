"""A quantized copy of a model directory, written one tensor after the other."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from gpu_worker.models.checkpoint import of_mlx, shards, usual_name
from gpu_worker.models.config import ModelConfig, read_config, read_values
from gpu_worker.models.formats import read_format
from gpu_worker.models.formats.format import IN_MLX_FORM, KEY
from gpu_worker.models.wrapped import tower_tensors
from ops.model_directory.files import MODELOPT, read_json
from ops.model_directory.modules import modules_in
from ops.quantize.weights import TARGETS, Target

SHARD = 1 << 30
"""Bytes of a file of weights, at least, unless it is the last one. So much is held in memory."""

_WEIGHT = ".weight"
_INDEX = "model.safetensors.index.json"


class QuantizeError(Exception):
    """The model cannot be quantized. The message is one line."""


@dataclass
class Report:
    """What became of a model's weights."""

    quantized: int = 0
    """Number of weights that are quantized."""
    plain: int = 0
    """Number of other weights."""
    bytes_before: int = 0
    bytes_after: int = 0


def quantize(source: Path, target: Path, kind: str, say: Callable[[str], object]) -> Report:
    """Write a copy of model `source`, quantized to `kind`, a name in `TARGETS`, to `target`.

    `say`: takes lines of progress. Raises `ModelError` and `QuantizeError`.
    """
    if target.exists():
        raise QuantizeError(f"{target} exists already")
    values = read_values(source)
    if values.get(KEY) is not None or read_format(values) is not None:
        raise QuantizeError(f"{source} is quantized already ({KEY} in config.json, or {MODELOPT})")
    config = read_config(source)
    if config.family.transposed:
        raise QuantizeError(f"{source}: weights of {config.architecture} are [in, out]")
    made = target.with_name(f"{target.name}.part")
    made.mkdir(parents=True)
    try:
        report = _write(source, made, TARGETS[kind], config, say)
        made.rename(target)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return report


def _write(
    source: Path, made: Path, target: Target, config: ModelConfig, say: Callable[[str], object]
) -> Report:
    report, ignored = Report(), {config.family.names.head}  # named also if it is the embedding
    writer = _Writer(made)
    with ExitStack() as opened:
        files = [opened.enter_context(safe_open(path, framework="pt")) for path in shards(source)]
        if config.family.recurrent is not None and any(map(of_mlx, files)):
            raise QuantizeError(f"{source}: {IN_MLX_FORM}")
        names = [(name, file) for file in files for name in file.keys()]  # noqa: SIM118
        towers = tower_tensors(name for name, _ in names)
        for number, (name, file) in enumerate(names):
            tensor = file.get_tensor(name)
            report.bytes_before += tensor.nbytes
            found = {name: tensor}
            if tensor.dim() == 2 and name.endswith(_WEIGHT) and tensor.is_floating_point():
                stem = name.removesuffix(_WEIGHT)
                whole = tensor.shape[1] % target.multiple == 0
                if whole and name not in towers and _is_product(config, name):
                    encoded = target.encode(tensor, tensor.dtype)
                    found = {f"{stem}.{end}": each for end, each in encoded.items()}
                    report.quantized += tensor.numel()
                else:
                    ignored.add(stem)
            if name in found and found[name] is tensor:
                report.plain += tensor.numel()
            report.bytes_after += sum(each.nbytes for each in found.values())
            writer.add(found)
            if 10 * (number + 1) // len(names) > 10 * number // len(names):
                say(f"{100 * (number + 1) // len(names)} % of {len(names)} tensors")
    writer.close()
    _copy_files(source, made, target.config(sorted(ignored)))
    return report


def _is_product(config: ModelConfig, name: str) -> bool:
    """Whether a matrix of the language model is quantized: embeddings, heads, routers and the weights of an
    indexer's heads, whose rounding costs most, are not."""
    stem = usual_name(name, config.family.aliases).removesuffix(_WEIGHT)
    names, experts, latent = config.family.names, config.family.experts, config.family.latent
    others = [names.embedding, names.head, names.score, *([names.positions] if names.positions else [])]
    if experts is not None:
        others += [experts.router, *([experts.shared_gate] if experts.shared_gate else [])]
    if latent is not None and latent.indexer is not None:
        others.append(f"{latent.indexer}weights_proj")
    return not any(stem == other or stem.endswith(f".{other}") for other in others)


class _Writer:
    """Writes tensors to files of about `SHARD` bytes, and their index."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._held: dict[str, Tensor] = {}
        self._files: list[list[str]] = []
        self._bytes = 0

    def add(self, tensors: dict[str, Tensor]) -> None:
        self._held |= {name: each.contiguous() for name, each in tensors.items()}
        if sum(each.nbytes for each in self._held.values()) >= SHARD:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            self._files.append(list(self._held))
            self._bytes += sum(each.nbytes for each in self._held.values())
            save_file(self._held, self._directory / f"{len(self._files)}.part", {"format": "pt"})
            self._held = {}

    def close(self) -> None:
        """Give the files their names, which have their number, and write the index."""
        self._flush()
        count, weight_map = len(self._files), dict[str, str]()
        for number, names in enumerate(self._files, 1):
            file = "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"
            (self._directory / f"{number}.part").rename(self._directory / file)
            weight_map |= dict.fromkeys(names, file)
        if count > 1:
            index = {"metadata": {"total_size": self._bytes}, "weight_map": weight_map}
            (self._directory / _INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def _copy_files(source: Path, made: Path, quantization: dict[str, Any]) -> None:
    """The small files of the model, and its config.json with the quantization."""
    for path in _small_files(source):
        copy = made / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    config = read_json(source / "config.json") | {KEY: quantization}
    (made / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _small_files(source: Path) -> Iterator[Path]:
    for pattern in ("*.json", "*.jinja", "*.txt", "*.model", "additional_chat_templates/*.jinja"):
        yield from (path for path in sorted(source.glob(pattern)) if path.name not in ("config.json", _INDEX))
    for folder in {module.path for module in modules_in(source)} - {"", "."}:
        for pattern in ("*.json", "*.safetensors"):  # weights of layers after the pooling
            yield from (source / folder).glob(pattern)
