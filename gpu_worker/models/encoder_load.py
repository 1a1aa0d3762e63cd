"""From a model directory to an encoder of transformers. Weights that are quantized are dequantized."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from gpu_worker.errors import ModelError, line_of
from gpu_worker.models.checkpoint import Checkpoint, open_checkpoint
from gpu_worker.models.config import architecture_of, classified_in
from gpu_worker.models.encoder import Encoder
from gpu_worker.models.float16 import computed_in
from gpu_worker.models.formats.format import Format
from gpu_worker.models.lazy_tensor import LazyTensor, with_tensors
from gpu_worker.models.transformers_load import config_of
from gpu_worker.models.values import Values
from ops.model_directory import files
from ops.model_directory.classifier import ARCHITECTURE as CLASSIFIER
from ops.model_directory.files import FileError

_BUFFERS = ("position_ids", "token_type_ids")
"""Ends of names of tensors that old checkpoints have although they are no weights."""
LONGEST = 8192
"""Tokens of a text at most, if nothing says how many: each text is computed whole, in one step."""
_SETTINGS = "sentence_bert_config.json"
"""File of sentence-transformers that says how long a text may be."""


def load_encoder(
    values: Values, family: str, form: Format | None, device: torch.device, dtype: torch.dtype | None
) -> tuple[Encoder, Checkpoint, int]:
    """Load an encoder: it, its checkpoint, which is closed, and its number of parameters.

    `values`: of config.json. `family`: see `encoder_family`. `form`, `dtype`: see `load_with_transformers`.
    Raises `ModelError`.
    """
    architecture, directory = architecture_of(values), values.path.parent
    if values.flag("is_decoder"):
        raise values.wrong("is_decoder", "true is not supported: a token of an encoder sees later ones")
    try:
        import transformers
    except ImportError:
        what = f"{architecture} is not supported without the package transformers"
        raise values.wrong("architectures", what) from None
    labels, _ = classified_in(values, values.positive("vocab_size"))
    kind = getattr(transformers, architecture if labels else f"{family}Model")
    try:
        with open_checkpoint(directory, form) as checkpoint:
            config = _config_of(kind, values)
            dtype = computed_in(dtype or config.dtype or checkpoint.dtype(), dtype is not None, architecture)
            model = _loaded(kind, config, checkpoint, dtype)
            parameters: int = model.num_parameters()
            return Encoder(model.eval(), device), checkpoint, parameters
    except ModelError as error:
        raise values.wrong("architectures", f"{architecture} is not supported: {error}") from error
    except Exception as error:  # transformers raises errors of all kinds
        what = f"transformers cannot load {architecture}: {line_of(error)}"
        raise ModelError(f"{directory}: {what}") from error


_NOMIC = {
    **{"n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size"},
    **{"n_layer": "num_hidden_layers", "layer_norm_epsilon": "layer_norm_eps"},
    **{"rotary_emb_base": "rope_theta", "max_trained_positions": "max_position_embeddings"},
}
"""Keys of NomicBERT's own code, and what transformers calls them."""
_ONLY = {
    **{"activation_function": "swiglu", "rotary_emb_fraction": 1.0, "rotary_scaling_factor": None},
    **{"rotary_emb_scale_base": None, "use_rms_norm": False, "moe_every_n_layers": 0},
    **dict.fromkeys(("rotary_emb_interleaved", "prenorm", "parallel_block", "causal"), False),
    **dict.fromkeys(("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"), False),
}
"""Others of these, with the one value that transformers computes with."""


def _config_of(kind: Any, values: Values) -> Any:
    """As `config_of`, by the keys of a model's first code, too. Raises `ModelError`."""
    if "n_embd" not in values.values or not kind.__name__.startswith("NomicBert"):
        return config_of(kind, values)
    for key, only in _ONLY.items():
        if values.get(key, only) != only:
            raise values.wrong(key, f"{values.get(key)!r} is not supported, but {only!r}")
    given = {usual: values.values[own] for own, usual in _NOMIC.items() if own in values.values}
    return kind.config_class.from_dict({**values.values, **given})


def usual_length(directory: Path, most: int) -> int:
    """Tokens of the longest text that an encoder is meant for, of the `most` that it takes.

    Beyond these sentence-transformers cuts a text. Raises `ModelError`.
    """
    path = directory / _SETTINGS
    if not path.is_file():
        return min(most, LONGEST)
    try:
        values = Values(path, files.read_config(path))
    except FileError as error:
        raise ModelError(str(error)) from error
    return min(most, values.positive("max_seq_length", LONGEST))


def _loaded(kind: Any, config: Any, checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """The model with the checkpoint's weights in `dtype`; those of a classification head, and of the pooler
    under it, in float32. Raises `ModelError` for missing ones, which transformers would draw by chance.

    Without a classification head there is no pooler: embeddings are pooled here.
    """
    exact = set[str]()
    if kind.__name__.endswith(CLASSIFIER):
        with torch.device("meta"):
            exact = {name for name, _ in kind(config).named_children()} - {kind.base_model_prefix} | {
                "pooler"
            }
        kept = {"__module__": kind.__module__, "_keep_in_fp32_modules_strict": exact}
        kind = type(kind.__name__, (kind,), kept)
    tensors = {
        name: LazyTensor(checkpoint, name, dtype if exact.isdisjoint(name.split(".")) else torch.float32)
        for name in checkpoint.weights()
    }
    model, report = with_tensors(kind, config, tensors, dtype)
    inner = getattr(model, model.base_model_prefix, model)
    unpooled = inner is model and hasattr(model, "pooler")
    if unpooled:
        model.pooler = None
    missing = [name for name in report["missing_keys"] if not (unpooled and name.startswith("pooler."))]
    if missing:
        raise ModelError(f"tensor {min(missing)} is missing from the checkpoint")
    if unknown := _within(inner, report["unexpected_keys"]):
        raise ModelError(f"config.json does not account for tensor {unknown[0]}")
    return model


def _within(inner: Any, names: Iterable[str]) -> list[str]:
    """Those of `names` that are weights of the encoder's own parts, sorted. Others are of heads that are not
    used."""
    parts = {name for name, _ in inner.named_children()} - {"pooler"}
    prefix = f"{inner.base_model_prefix}."
    weights = (name for name in names if not name.endswith(_BUFFERS))
    return sorted(name for name in weights if name.removeprefix(prefix).partition(".")[0] in parts)
