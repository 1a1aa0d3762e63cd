"""From a model directory to a model of transformers with Quire's products.

transformers makes the model and loads what is no product: embeddings, norms, biases. The layers that the
trial computes have the weights of their products, too, dequantized. Those of the other layers are zeros that
take no memory. After the trial Quire reads the weights of all products, whatever their format, one at a time,
and substitutes the modules.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_worker.errors import ModelError, line_of
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.kept import kinds_kept
from gpu_worker.models.checkpoint import Checkpoint, open_checkpoint
from gpu_worker.models.classification import classification_head
from gpu_worker.models.config import architecture_of, classified_in
from gpu_worker.models.families import FAMILIES
from gpu_worker.models.float16 import computed_in
from gpu_worker.models.formats.format import KEY, Format
from gpu_worker.models.kv_scales import ENDS, UNUSED
from gpu_worker.models.lazy_tensor import with_tensors
from gpu_worker.models.substitutes import (
    lies_transposed,
    multiply_rest,
    share_head,
    substitutable,
    substitute_activations,
    substitute_experts,
    substitute_linear,
    up_name,
)
from gpu_worker.models.transformers_model import TransformersModel, decoder_name
from gpu_worker.models.transformers_names import Parts, parts_of
from gpu_worker.models.trial import layers_of, number_tried
from gpu_worker.models.values import Values
from gpu_worker.models.weights import Weights
from ops.model_directory.classifier import ARCHITECTURE as CLASSIFIER
from ops.model_directory.files import read_config

_WEIGHT = ".weight"


def load_with_transformers(
    directory: Path,
    values: Values,
    form: Format | None,
    device: torch.device,
    kernels: Kernels,
    dtype: torch.dtype | None,
    positions: int,
) -> tuple[TransformersModel, Checkpoint, int]:
    """Load a model with transformers: it, its checkpoint, which is closed, and its number of parameters.

    `form`: how weights are quantized. `dtype`, `positions`: see `load_model`. Raises `ModelError`.
    """
    architecture = architecture_of(values)
    try:
        import transformers
    except ImportError:
        what = f"{architecture} is not supported without the package transformers"
        raise values.wrong("architectures", what) from None
    known = architecture.endswith(("ForCausalLM", CLASSIFIER)) or architecture in FAMILIES
    if not (known and hasattr(transformers, architecture)):
        what = "is not supported: neither Quire nor this version of transformers has it"
        if hasattr(transformers, architecture):
            what = "is not supported: it is no causal language model, no classifier and no known encoder"
        elif values.get("auto_map"):
            what = "is not supported: its own code would have to be run (auto_map), which is never done"
        raise values.wrong("architectures", f"{architecture} {what}")
    try:
        with open_checkpoint(directory, form) as checkpoint:
            loading = _Loading(
                getattr(transformers, architecture), values, checkpoint, dtype, device, kernels
            )
            return loading.model(positions), checkpoint, loading.parameters
    except ModelError as error:
        raise values.wrong("architectures", f"{architecture} is not supported: {error}") from error
    except Exception as error:  # transformers raises errors of all kinds
        what = f"transformers cannot load {architecture}: {line_of(error)}"
        raise ModelError(f"{directory}: {what}") from error


class _Loading:
    """A model that is being loaded."""

    def __init__(
        self,
        kind: Any,
        values: Values,
        checkpoint: Checkpoint,
        dtype: torch.dtype | None,
        device: torch.device,
        kernels: Kernels,
    ) -> None:
        """`kind`: the model's class."""
        self._kind, self._checkpoint, self._kernels = kind, checkpoint, kernels
        self._config = config_of(kind, values)
        self._dtype = computed_in(
            dtype or self._config.dtype or checkpoint.dtype(), dtype is not None, kind.__name__
        )
        _, self._score_tokens = classified_in(values, self._config.get_text_config().vocab_size)
        with torch.device("meta"):
            self._skeleton = kind._from_config(self._config, dtype=self._dtype)
        # A checkpoint may have kept a head that a classifier does not use.
        self._unused = ("lm_head.weight",) if classification_head(self._skeleton) is not None else ()
        self._shapes = {name: tuple(each.shape) for name, each in self._skeleton.state_dict().items()}
        self.parameters: int = self._skeleton.num_parameters()
        keeps = kinds_kept(kernels) if checkpoint.quantized else frozenset()
        self._weights = Weights(checkpoint, self._dtype, device, keeps=keeps)
        self._names = checkpoint.weights()
        self._parts = parts_of(self._skeleton, self._names)
        self._transposed = {
            weight
            for name, module in substitutable(self._skeleton)
            if not isinstance(module, torch.nn.Linear) and lies_transposed(module)
            for weight in _weights_of(name, module)
        }

    def model(self, positions: int) -> TransformersModel:
        """The model, tried, with Quire's products. Raises `ModelError`."""
        empty = self._empty()
        model = self._loaded(empty).eval()
        model.set_experts_implementation("eager")  # others cannot compute with zeros that take no memory
        for name in empty:
            model.get_parameter(name).data = torch.empty(0, dtype=self._dtype)
        model.to(self._weights.device)
        for name in empty:
            parameter = model.get_parameter(name)
            parameter.data = parameter.new_zeros(()).expand(self._shapes[name])
        head = model.get_output_embeddings()
        modules = [
            (name, module, model.get_submodule(name.rpartition(".")[0]))
            for name, module in substitutable(model)
        ]
        embedding, every = model.get_input_embeddings(), list(model.modules())
        found = TransformersModel(model, positions, self._score_tokens)
        for name, module, around in modules:
            self._substitute(name, module, around, module is head)
        if self._weights.device.type == "cpu":
            if head is not None and head.weight is embedding.weight:
                share_head(embedding, head, self._kernels)
            multiply_rest(every, self._kernels)
            substitute_activations(every, self._kernels)
        found.check_products()
        return found

    def _empty(self) -> list[str]:
        """Weights of products in layers that the trial does not compute, which Quire can read."""
        decoder = getattr(self._skeleton, where := decoder_name(self._skeleton))
        layers = layers_of(decoder, text := self._config.get_text_config())
        if layers is None:
            return []
        inside = next(name for name, module in decoder.named_modules() if module is layers)
        within = f"{where}.{inside}."
        early = tuple(f"{within}{number}." for number in range(number_tried(layers, text)))
        every = [
            _weights_of(name, module)
            for name, module in substitutable(self._skeleton)
            if name.startswith(within) and not name.startswith(early)
        ]
        return [name for names in every if all(map(self._reader, names)) for name in names]

    def _loaded(self, empty: list[str]) -> Any:
        """The model with the checkpoint's weights, but for those in `empty`. Raises `ModelError` for missing
        ones, which transformers would draw by chance."""
        stacked = {
            target: _Read(self._checkpoint, parts, self._dtype, target in self._transposed)
            for target, parts in self._parts.items()
            if len(self._shapes[target]) > 2 and not _is_one(parts)
        }
        taken = {name for target in {*stacked, *empty} for part in self._parts[target] for name in part}
        tensors: dict[str, Any] = stacked | {
            name: _Read(self._checkpoint, ((name,),), self._dtype) for name in self._names - taken
        }
        tensors |= {name: torch.zeros((), dtype=self._dtype).expand(self._shapes[name]) for name in empty}
        model, report = with_tensors(self._kind, self._config, tensors, self._dtype)
        if missing := sorted(report["missing_keys"]):
            raise ModelError(f"tensor {missing[0]} is missing from the checkpoint")
        if unknown := self._checkpoint.unaccounted(
            sorted(report["unexpected_keys"]), (*ENDS, *UNUSED, *self._unused)
        ):
            raise ModelError(f"config.json does not account for tensor {unknown[0]}")
        return model

    def _substitute(self, name: str, module: Any, around: Any, is_head: bool) -> None:
        """Give a module, which is a part of `around`, Quire's products. Weights that Quire cannot read are
        transformers'."""
        names = _weights_of(name, module)
        first, *down = (self._reader(each) or self._loaded_reader(module, each) for each in names)
        if down:
            experts = ((first(number), down[0](number)) for number in range(self._shapes[names[0]][0]))
            substitute_experts(module, around, experts, self._kernels)
        else:
            substitute_linear(module, first(...), self._kernels, wide=is_head)

    def _reader(self, name: str) -> "_Reader | None":
        """Reads the weight `name` of the model, a matrix or all experts. None: its parts are not known."""
        parts, weights = self._parts.get(name, ()), self._weights
        shape = self._shapes[name]
        if parts and _is_one(parts):
            own = parts[0][0]
            if len(shape) == 2:
                return lambda _: weights.read(own, *shape)
            return self._ordered(
                name,
                lambda number: weights.checkpoint.take(own, shape)[number].to(weights.device, self._dtype),
            )
        names = [each for part in parts for each in part]
        if not parts or not all(each.endswith(_WEIGHT) for each in names) or len(parts[0]) != shape[0]:
            return None
        rows, columns = shape[:0:-1] if name in self._transposed else shape[1:]
        rows //= len(parts)
        return lambda number: weights.merged(
            {part[number].removesuffix(_WEIGHT): rows for part in parts}, columns, False
        )[0]

    def _loaded_reader(self, module: Any, name: str) -> "_Reader":
        """Reads the weight `name`, of this module, that transformers has loaded."""
        return self._ordered(name, module.get_parameter(name.rpartition(".")[2]).data.__getitem__)

    def _ordered(self, name: str, read: "_Reader") -> "_Reader":
        """`read`, of which a matrix of the weight `name` is [out, in]."""
        return (lambda number: read(number).T.contiguous()) if name in self._transposed else read


_Reader = Callable[[Any], Tensor]
"""From the number of an expert, or `...`, to a matrix [out, in]."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A tensor, or experts to be stacked, of a checkpoint. They are read when transformers asks for them."""

    checkpoint: Checkpoint
    parts: Parts
    dtype: torch.dtype
    transposed: bool = False
    """Stacked experts are to be [experts, in, out]."""

    def __getitem__(self, everything: Any) -> Tensor:
        if _is_one(self.parts):
            return self.checkpoint.dense(self.parts[0][0], self.dtype)
        experts = zip(*self.parts, strict=True)
        stacked = torch.stack([torch.cat([self._dense(name) for name in each]) for each in experts])
        return stacked.mT if self.transposed else stacked

    def _dense(self, name: str) -> Tensor:
        return self.checkpoint.dense(name, self.dtype).to(self.dtype)


def _is_one(parts: Parts) -> bool:
    """Whether a parameter is a tensor of the checkpoint as it lies there."""
    return len(parts) == 1 and len(parts[0]) == 1


def _weights_of(name: str, module: Any) -> list[str]:
    """Names of the weights of a module that can be substituted."""
    ends = ("weight",) if isinstance(module, torch.nn.Linear) else (up_name(module), "down_proj")
    return [f"{name}.{end}" for end in ends]


def config_of(kind: Any, values: Values) -> Any:
    """The configuration of transformers, without `quantization_config`: weights come dequantized."""
    if read_config(values.path).get("architectures") == values.get("architectures"):
        config = kind.config_class.from_pretrained(values.path.parent, local_files_only=True)
    else:  # a language model within another
        config = kind.config_class.from_dict(dict(values.values))
    if hasattr(config, KEY):
        delattr(config, KEY)
    return config
