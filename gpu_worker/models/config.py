"""config.json as a `ModelConfig`, the same for all families and versions of transformers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

import torch

from gpu_worker.errors import ModelError
from gpu_worker.kernels.kv_sizes import PageShape, StateShape
from gpu_worker.models.alibi import slopes
from gpu_worker.models.experts_config import ExpertsConfig, read_experts
from gpu_worker.models.families import FAMILIES, Family, family_of, is_headless
from gpu_worker.models.index_config import IndexConfig, read_index
from gpu_worker.models.positions_config import read_ropes, read_windows
from gpu_worker.models.recurrent_config import RecurrentConfig, read_recurrent
from gpu_worker.models.rope import RopeConfig
from gpu_worker.models.values import Values
from gpu_worker.models.wrapped import language_part
from ops.model_directory import files
from ops.model_directory.classifier import classifier_of
from ops.model_directory.files import FileError
from ops.model_directory.weight_files import MADE_OF

T = TypeVar("T")

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
}
"""Names of activations: transformers' to ours."""
_UNGATED = {"relu": "relu", "relu2": "relu2"}
"""Those of an MLP without gates alone."""


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention, with DeepSeek's names (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

    kv_lora_rank: int
    """Size of the compressed row that keys and values of all heads are computed from."""
    q_lora_rank: int
    """Size of the compressed row that queries are computed from. 0: queries are not compressed."""
    qk_nope_head_dim: int
    """Dimensions of a head's queries and keys that are not rotated."""
    qk_rope_head_dim: int
    """Dimensions of queries and keys that are rotated. All heads share one rotated key."""
    v_head_dim: int
    """Dimensions of a head's values."""


@dataclass(frozen=True, slots=True)
class Shape(ABC):
    """Sizes and types that a worker needs of any model."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_position: int
    """Longest sequence that the model was trained for, in tokens."""
    windows: tuple[int, ...]
    """Attention window of each layer, in positions, the token's own included. 0: full attention."""
    dtype: torch.dtype | None
    """Type of the weights that config.json names. None: it names none."""
    num_labels: int = field(default=0, kw_only=True)
    """Labels of a classifier. 0: the model is none."""
    score_tokens: tuple[int, ...] = field(default=(), kw_only=True)
    """Tokens whose logits score a text, as in `classifier.Classifier` of `ops.model_directory`. Empty: a
    classifier has a classification head in place of the language model's head."""
    headless: bool = field(default=False, kw_only=True)
    """The model has no head: it embeds texts and generates none."""

    @property
    def has_lm_head(self) -> bool:
        return not (self.headless or self.num_labels) or bool(self.score_tokens)

    @property
    def window(self) -> int:
        """The largest attention window of all layers, in positions. 0: a layer has full attention."""
        return max(self.windows) if all(self.windows) else 0

    @property
    @abstractmethod
    def pages(self) -> tuple[PageShape, ...]:
        """Sizes of each layer's pages. A layer that attends to the keys of an earlier layer has none, and so
        has a recurrent layer."""

    @property
    def kept(self) -> tuple[PageShape | StateShape, ...]:
        """What each layer keeps in blocks: pages, or a state."""
        return self.pages

    @property
    def recurrent(self) -> bool:
        """Whether a layer keeps a state."""
        return any(isinstance(each, StateShape) for each in self.kept)

    @property
    def replayable(self) -> bool:
        """Whether a step's launches follow from its shape alone, so that a CUDA graph can replay them."""
        return False

    @property
    def bidirectional(self) -> bool:
        """Whether the model is an encoder: a token attends to later ones, too."""
        return False


@dataclass(frozen=True, slots=True)
class ModelConfig(Shape):
    """The configuration of a decoder of `families/`."""

    family: Family
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    activation: str
    """silu, gelu or gelu_tanh; without gates also relu or relu2."""
    ropes: tuple[RopeConfig, ...]
    """Rotary embedding of each layer."""
    tie_word_embeddings: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    parallel: bool
    """See `Family.parallel`."""
    attention_scale: float | None = None
    """Factor of attention scores. None: 1/sqrt(head_dim)."""
    slopes: tuple[float, ...] = ()
    """Slope of each head's linear bias (`alibi.py`). Empty: the model has no linear biases."""
    clip_qkv: float | None = None
    """Queries, keys and values are clamped to [-clip_qkv, clip_qkv]. None: they are not."""
    embedding_scale: float = 1.0
    """Factor of embeddings, divided by residual_multiplier if config.json has one.

    Instead of multiplying each contribution to the residual by residual_multiplier, embeddings are divided by
    it. All that reads the residual is norms, which give the same if `norm_eps` is divided by its square.
    """
    attention_softcap: float = 0.0
    """Attention scores x become softcap * tanh(x / softcap). 0: scores are not capped."""
    logit_softcap: float = 0.0
    """Logits x become softcap * tanh(x / softcap). 0: logits are not capped."""
    logit_scale: float = 1.0
    """Factor of logits."""
    experts: ExpertsConfig | None = None
    """None: all layers have an MLP."""
    multipliers: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Factors of a layer's weights, by tensor: of each part of it. They are multiplied when they are
    loaded."""
    key_copies: int = 1
    """Number of ranks that compute the same key heads; see `split.rank_config`."""
    latent: LatentConfig | None = None
    """None: attention is not latent. With latent attention `head_dim` is `qk_rope_head_dim`."""
    index: IndexConfig | None = None
    """None: tokens attend to their whole context."""
    recurrence: RecurrentConfig | None = None
    """None: all layers have attention."""
    nextn_predict_layers: int = 0
    """Number of layers for multi-token prediction that are numbered after the last layer (`predictor.py`)."""

    def up_to(self, positions: int) -> "ModelConfig":
        """The configuration for sequences of at most `positions` positions. It has no indexers if they would
        select all of these."""
        selects = self.index is not None and self.index.top_k < positions
        return self if selects else replace(self, index=None)

    @property
    def pages(self) -> tuple[PageShape, ...]:
        """Of each layer, then of each indexer."""
        pages = PageShape(self.num_kv_heads, self.head_dim, self.head_dim)
        if self.latent is not None:
            rank = self.latent.kv_lora_rank
            pages = PageShape(1, rank + self.latent.qk_rope_head_dim, rank, shared=True)
        if self.index is None:
            without = self.recurrence.without_attention if self.recurrence else ()
            return (pages,) * (self.num_layers - len(without))
        keys = PageShape(1, self.index.head_dim, self.index.head_dim, shared=True)
        return (pages,) * self.num_layers + (keys,) * len(self.index.layers)

    @property
    def kept(self) -> tuple[PageShape | StateShape, ...]:
        return self.pages if self.recurrence is None else tuple(chain.from_iterable(self.kept_by_layer))

    @property
    def kept_by_layer(self) -> tuple[tuple[PageShape | StateShape, ...], ...]:
        """What each layer keeps, its indexer left out: pages, a state, both, or nothing."""
        pages, recurrence = self.pages[:1], self.recurrence
        if recurrence is None:
            return (pages,) * self.num_layers
        return tuple(
            (() if number in recurrence.without_attention else pages)
            + ((recurrence.state,) if number in recurrence.layers else ())
            for number in range(self.num_layers)
        )

    @property
    def unused(self) -> tuple[str, ...]:
        """Prefixes of the names of tensors that a checkpoint may have and that are not loaded."""
        names, latent = self.family.names, self.family.latent
        last = self.num_layers + self.nextn_predict_layers
        layers = [names.base + names.layer.format(number) for number in range(last)]
        without = set(range(last)) - set(self.index.layers if self.index else ())
        indexers = (
            [layers[number] + latent.indexer for number in without] if latent and latent.indexer else []
        )
        return (*layers[self.num_layers :], *indexers, *self.family.left_out)

    @property
    def replayable(self) -> bool:
        return self.index is None and self.recurrence is None


def read_config(directory: Path) -> ModelConfig:
    """Read `directory`/config.json of a model of `families/`.

    Raises `ModelError`, with the key at fault if it is one.
    """
    values = read_values(directory)
    architecture = architecture_of(values)
    family = family_of(architecture, values.values)
    if family is None:
        known = ", ".join(FAMILIES)
        raise values.wrong("architectures", f"{architecture} is not supported ({known})")
    canonical = family.canonical(values.values, made=values.get(MADE_OF) is not None)
    return _config_of(architecture, family, Values(values.path, canonical))


def read_values(directory: Path) -> Values:
    """`directory`/config.json. Raises `ModelError`."""
    path = directory / "config.json"
    if not path.is_file():
        raise ModelError(f"{directory} is not a model directory: it has no config.json")
    try:
        values = language_part(files.read_config(path))
    except FileError as error:
        raise ModelError(str(error)) from error
    return Values(path, values)


def architecture_of(values: Values) -> str:
    """The name under `architectures`. Raises `ModelError` if there is not exactly one."""
    architectures = values.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise values.wrong("architectures", f"exactly one is needed, not {architectures!r}")
    return str(architectures[0])


def named_dtype(values: Values) -> torch.dtype | None:
    """The type of weights that config.json names, if it names one. Raises `ModelError`."""
    key = "dtype" if values.get("dtype") else "torch_dtype"
    return _choice(values, key, _DTYPES, "") if values.get(key) else None


def classified_in(values: Values, vocab_size: int) -> tuple[int, tuple[int, ...]]:
    """`Shape.num_labels` and `Shape.score_tokens`. Raises `ModelError`."""
    try:
        classifier = classifier_of(values.path.parent, values.values)
    except FileError as error:
        raise ModelError(str(error)) from error
    if classifier is None:
        return 0, ()
    if max(classifier.tokens, default=0) >= vocab_size:
        raise values.wrong("vocab_size", f"{vocab_size} is too small for the tokens {classifier.tokens}")
    return len(classifier.labels), classifier.tokens


def _config_of(architecture: str, family: Family, values: Values) -> ModelConfig:
    if values.get("is_causal") is False:
        raise values.wrong("is_causal", "false is not supported: tokens would see later ones")
    hidden_size = values.positive("hidden_size")
    heads = values.positive("num_attention_heads")
    kv_heads = values.positive("num_key_value_heads", heads)
    if heads % kv_heads:
        raise values.wrong("num_key_value_heads", f"{kv_heads} does not divide {heads} heads")
    head_dim = values.positive("head_dim", max(1, hidden_size // heads))
    if head_dim % 2:
        raise values.wrong("head_dim", f"{head_dim} is odd, and rotary embeddings pair dimensions")
    layers = values.positive("num_hidden_layers")
    windows = read_windows(family, values, layers)
    scale = _attention_scale(values)
    residual = values.number("residual_multiplier", 1.0)
    vocab_size = values.positive("vocab_size")
    labels, score_tokens = classified_in(values, vocab_size)
    return ModelConfig(
        architecture=architecture,
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(family, values, hidden_size),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=values.positive("max_position_embeddings", 2048),
        norm_eps=values.number("norm_eps", values.number("rms_norm_eps", 1e-6)) / residual**2,
        activation=_choice(
            values, "hidden_act", _ACTIVATIONS if family.gated else _ACTIVATIONS | _UNGATED, "silu"
        ),
        ropes=read_ropes(family, values, head_dim, windows),
        tie_word_embeddings=values.flag("tie_word_embeddings"),
        headless=is_headless(architecture),
        qkv_bias=values.fact(family.qkv_bias),
        out_bias=values.fact(family.out_bias),
        mlp_bias=values.fact(family.mlp_bias),
        parallel=values.fact(family.parallel),
        dtype=named_dtype(values),
        windows=windows,
        attention_scale=scale,
        slopes=_slopes(family, values, heads, scale or head_dim**-0.5),
        clip_qkv=values.maybe("clip_qkv"),
        embedding_scale=values.number("embedding_multiplier", 1.0) / residual,
        attention_softcap=values.maybe("attn_logit_softcapping") or 0.0,
        logit_softcap=values.maybe("final_logit_softcapping") or 0.0,
        logit_scale=values.number("logit_scale", 1.0) / values.number("logits_scaling", 1.0),
        multipliers=_multipliers(family, values),
        experts=read_experts(family.experts, values, layers),
        latent=_latent(values) if family.latent else None,
        index=read_index(values, layers) if family.latent and family.latent.indexer else None,
        recurrence=read_recurrent(family.recurrent, values, layers),
        nextn_predict_layers=values.count("num_nextn_predict_layers"),
        num_labels=labels,
        score_tokens=score_tokens,
    )


def _intermediate_size(family: Family, values: Values, hidden_size: int) -> int:
    size = values.positive("intermediate_size", None if family.gated else 4 * hidden_size)
    if values.flag("block_auto_adjust_ff_dim"):  # LFM2
        multiple = values.positive("block_multiple_of", 256)
        size = int(values.number("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
        size = -(-size // multiple) * multiple
    return size


def _multipliers(family: Family, values: Values) -> dict[str, tuple[float, ...]]:
    """See `Family.multipliers`. Tensors whose factors are 1 are left out."""

    def number(path: str) -> float:
        key, _, place = path.partition(".")
        if not place or values.get(key) is None:
            return values.number(key, 1.0)
        found = values.numbers(key)
        if int(place) >= len(found):
            raise values.wrong(key, f"more than {len(found)} numbers are needed")
        return found[int(place)]

    found = {
        tensor: tuple(math.prod(map(number, paths)) for paths in parts)
        for tensor, parts in family.multipliers.items()
    }
    return {tensor: factors for tensor, factors in found.items() if set(factors) != {1.0}}


def _attention_scale(values: Values) -> float | None:
    scalar = values.maybe("query_pre_attn_scalar")
    return 1 / math.sqrt(scalar) if scalar else values.maybe("attention_multiplier")


def _slopes(family: Family, values: Values, heads: int, scale: float) -> tuple[float, ...]:
    if not values.fact(family.alibi):
        return ()
    found = slopes(heads, values.number("alibi_bias_max", 8.0))
    return tuple(slope * scale for slope in found) if family.scales_alibi else found


def _choice(values: Values, key: str, choices: Mapping[str, T], default: str) -> T:
    name = values.values.get(key, default)
    if not isinstance(name, str) or name not in choices:
        raise values.wrong(key, f"{name!r} is not one of {', '.join(choices)}")
    return choices[name]


def _latent(values: Values) -> LatentConfig:
    return LatentConfig(
        values.positive("kv_lora_rank"),
        values.count("q_lora_rank"),
        values.positive("qk_nope_head_dim"),
        values.positive("head_dim"),
        values.positive("v_head_dim"),
    )
