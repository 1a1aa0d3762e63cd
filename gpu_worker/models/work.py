"""The least that a step must read and compute (Williams et al. 2009, "Roofline").

Its floor on a machine is the greater of bytes over bandwidth and operations over the matrix rate
(`machine/rates.py`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_worker.arrays import Int32s
from gpu_worker.machine.rates import Rates
from gpu_worker.models.config import ModelConfig

ITEM_BYTES = {"int8": 1.0, "int4": 4.5 / 8}
"""Bytes of a quantized weight. (A head beside weights of 4 bits has more.)"""


@dataclass(frozen=True, slots=True)
class Work:
    """The least that a step must read and compute. Operations are two for each multiplication."""

    weight_bytes: int
    """Bytes of weights to read."""
    kv_bytes: int
    """Bytes of keys and values to read, and of states to read and write."""
    product_operations: int
    """Floating-point operations of the products with weights."""
    attention_operations: int
    """Floating-point operations of the products of queries, keys and values, or with states."""

    @property
    def operations(self) -> int:
        """All floating-point operations."""
        return self.product_operations + self.attention_operations

    def floor(self, rates: Rates) -> float:
        """The least seconds that the step takes at these rates."""
        return max((self.weight_bytes + self.kv_bytes) / rates.read, self.operations / rates.matrix)

    def products_floor(self, rates: Rates) -> float:
        """The least seconds of the products with weights alone."""
        return max(self.weight_bytes / rates.read, self.product_operations / rates.matrix)

    def attention_floor(self, rates: Rates) -> float:
        """The least seconds of attention alone."""
        return max(self.kv_bytes / rates.read, self.attention_operations / rates.matrix)


def is_known(config: object) -> bool:
    """Whether `work` knows what a model of this configuration does: a decoder with one MLP in each layer."""
    return isinstance(config, ModelConfig) and config.experts is None and config.latent is None


def work(
    config: ModelConfig,
    itemsize: float,
    token_bytes: int,
    counts: Sequence[int] | Int32s,
    contexts: Sequence[int] | Int32s,
    sampled: int | None = None,
) -> Work:
    """The work of a step.

    `itemsize`: bytes of a weight. `token_bytes`: bytes of a token's keys and values in all layers. `counts`:
    tokens that each row computes. `contexts`: tokens of each row's sequence after the step. `sampled`: tokens
    that the step samples; None: each row samples one.
    """
    hidden, recurrent = config.hidden_size, config.recurrence
    without = recurrent.without_attention if recurrent else frozenset[int]()
    states = len(recurrent.layers) if recurrent else 0
    state = recurrent.state.block_bytes * states if recurrent else 0
    mlps = config.num_layers
    if recurrent is not None and recurrent.alone is not None:
        mlps = len(recurrent.alone)
    attentions = config.num_layers - len(without)
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    weights = attentions * hidden * (2 * (query + key) + query * config.family.gated_attention)
    weights += (3 if config.family.gated else 2) * mlps * hidden * config.intermediate_size
    weights += states * recurrent.weights(hidden) if recurrent else 0
    sampled = len(counts) if sampled is None else sampled
    head = config.vocab_size * hidden if sampled else 0
    computed, lengths = np.asarray(counts, np.int64), np.asarray(contexts, np.int64)
    seen = read = 0
    windows = (window for layer, window in enumerate(config.windows) if layer not in without)
    for window, alike in Counter(windows).items():
        seen += alike * _attended(computed, lengths, window)
        read += alike * _read(computed, lengths, window)
    return Work(
        weight_bytes=int((weights + head) * itemsize),
        kv_bytes=token_bytes * read // max(1, attentions) + 2 * state * len(counts),
        product_operations=2 * (weights * int(computed.sum()) + head * sampled),
        attention_operations=4 * query * seen + 6 * (state // 4) * int(computed.sum()),
    )


def _attended(counts: NDArray[np.int64], contexts: NDArray[np.int64], window: int) -> int:
    """Positions that all tokens of a step attend to in a layer: each token attends to itself and those before
    it, `window` at most if it is not 0."""
    starts = contexts - counts
    rising = counts if not window else np.clip(window - starts, 0, counts)  # tokens that see all before them
    return int((rising * starts + rising * (rising + 1) // 2 + (counts - rising) * window).sum())


def _read(counts: NDArray[np.int64], contexts: NDArray[np.int64], window: int) -> int:
    """Positions whose keys and values a layer reads."""
    return int((np.minimum(contexts, window + counts - 1) if window else contexts).sum())
