"""Multi-token prediction: a layer behind the model that guesses the token after the next one (DeepSeek-V3,
arXiv:2412.19437, section 2.2). Checkpoints bring it along.

    position               0      1      2      3
    token                  a      b      c      d
    of the model           A      B      C              its hidden state, and so the next token
    joint inputs          a A    b A    c B    d C      embedding of the token, hidden state of the one before
    guessed                       c      d      e       for the position after

So a token that has just been sampled is enough to guess the one behind it, at the cost of a layer and the
head. With its own result in place of the model's hidden state the layer guesses further tokens, one by one.
The first token has none before it, and takes its own hidden state. Of several such layers the first one alone
is used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.attention import Cache, LayerCache, Rotary, StepAttention
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.kv_sizes import PageShape, StateShape
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.families.family import Predictor as PredictorNames
from gpu_worker.models.head import base_of, rough_head
from gpu_worker.models.layers import Layer
from gpu_worker.models.norms import read_norm
from gpu_worker.models.rope import RopeConfig, rotary_tables
from gpu_worker.models.sight import Seen
from gpu_worker.models.weights import Weights

NO_PREDICTOR = "QUIRE_SPECULATION=mtp: no layer for multi-token prediction"
"""What `ModelError` says of a model that has none."""


@dataclass(frozen=True, slots=True)
class PredictorConfig(ModelConfig):
    """The configuration of a model of this one layer."""

    @property
    def kept(self) -> tuple[PageShape | StateShape, ...]:
        """Pages of the layer and of its indexer, and in each block the model's hidden state of the newest
        token that the block has."""
        return *self.pages, StateShape(1, self.hidden_size)

    @property
    def recurrent(self) -> bool:
        return False


class Model(Protocol):
    """What the layer shares with its model, a decoder."""

    config: ModelConfig
    dtype: torch.dtype
    rotary: dict[RopeConfig, Rotary]
    """Tables of rotary embeddings. The layer may add its own."""
    embed: Callable[[Tensor, Tensor], Tensor]
    """From tokens and their positions, [tokens] each, to embeddings [tokens, hidden_size]."""
    head: Callable[[Tensor], Tensor]
    """From normalized hidden states [rows, hidden_size] to logits, float32 [rows, vocab_size]."""

    def normed(self, hidden: Tensor) -> Tensor:
        """Hidden states [rows, hidden_size] after the last norm."""


class Predictor:
    """The layer, with embedding and head of the model."""

    def __init__(
        self, model: Model, of_model: Weights, weights: Weights, kernels: Kernels, positions: int
    ) -> None:
        """`of_model`, `weights`: of the model's checkpoint, and of that with the layer. `positions`: longest
        sequence, in positions.

        Raises `ModelError` if there is no such layer.
        """
        config = model.config
        if not config.has_lm_head:
            what = "a model without a head" if config.headless else "a classifier"
            raise ModelError(f"{NO_PREDICTOR}: {what} generates nothing")
        self._model, self.dtype = model, model.dtype
        self._head = rough_head(config, of_model, kernels) or model.head
        own, names = _find(config, weights)
        size, layer = config.hidden_size, own.under(names.layer)
        self._embedding_norm, self._hidden_norm, self._norm = (
            read_norm(config, own, kernels, name, size)
            for name in (names.embedding_norm, names.hidden_norm, names.final_norm)
        )
        self._joint = kernels.linear(*own.merged({names.joint: size}, 2 * size, False))
        self.config = _config_of(config, layer)
        layer = replace(layer, transposed=config.family.transposed, multipliers=config.multipliers)
        self._layer = Layer(self.config, 0, layer, kernels)
        self._rope = self.config.ropes[0]
        if self._rope not in model.rotary:
            model.rotary[self._rope] = rotary_tables(self._rope, config.head_dim, positions, weights.device)

    def __call__(
        self,
        tokens: Tensor,
        before: Tensor,
        step: StepAttention,
        caches: Sequence[Cache],
        seen: Seen | None = None,
    ) -> Tensor:
        """Hidden states [tokens, hidden_size], normalized, for token ids int32 [tokens] and the hidden states
        of the token before each, normalized, [tokens, hidden_size].

        Keys and values go into the first of `caches`. `seen`: what some of the tokens see in images.
        """
        pages = caches[0]
        assert isinstance(pages, LayerCache)
        if self.config.index is not None:
            index = caches[1]
            assert isinstance(index, LayerCache)
            pages = replace(pages, index=index)
        embedded = self._model.embed(tokens, step.positions)
        if seen is not None:
            seen.put(embedded)
        embedded = self._embedding_norm(embedded)
        hidden = self._joint(torch.cat((embedded, self._hidden_norm(before)), dim=-1))
        self._layer.add_to(hidden, self._model.rotary[self._rope], step, pages)
        return self._norm(hidden)

    def normed(self, hidden: Tensor) -> Tensor:
        """The model's hidden states [tokens, hidden_size] as this layer takes them."""
        return self._model.normed(hidden)

    def logits(self, normed: Tensor) -> Tensor:
        """Logits, float32 [rows, vocab_size], of what the call has returned [rows, hidden_size]."""
        return self._head(normed)


def _find(config: ModelConfig, weights: Weights) -> tuple[Weights, PredictorNames]:
    """The tensors of the layer and what is beside it, by the family's names or those that GGUF files have.

    Raises `ModelError` if there are none.
    """
    layer, wanted = config.family.names.layer.format(config.num_layers), list[str]()
    for names in (config.family.predictor, PredictorNames()):
        found = weights.under(names.prefix) if names.prefix else base_of(config, weights).under(layer)
        if found.has_any(f"{names.joint}."):
            return found, names
        wanted.append(f"{found.prefix}{names.joint}.weight")
    raise ModelError(f"{NO_PREDICTOR}: the checkpoint has no tensor {wanted[0]}")


def _config_of(config: ModelConfig, layer: Weights) -> PredictorConfig:
    """`config` for the layer with the tensors `layer`: full attention, and an MLP or experts, whichever
    these are."""
    experts, index = config.experts, config.index
    if config.window:
        raise ModelError(f"{NO_PREDICTOR}: {config.architecture} has attention windows in all layers")
    router = config.family.experts.router if config.family.experts else ""
    changes = {
        "num_layers": 1,
        "windows": (0,),
        "ropes": config.ropes[-1:],
        "recurrence": None,
        "experts": replace(experts, layers=frozenset({0})) if experts and layer.has_any(router) else None,
        "index": replace(index, layers=(0,)) if index else None,
    }
    kept = {each.name: getattr(config, each.name) for each in fields(ModelConfig)}
    return PredictorConfig(**kept | changes)
