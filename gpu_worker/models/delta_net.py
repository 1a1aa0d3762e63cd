"""The projections and decays of delta nets: what the delta rule needs, computed of hidden states."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import Linear
from gpu_worker.kernels.recurrence import Decay
from gpu_worker.models.families.family import DeltaNet, KimiDelta
from gpu_worker.models.recurrent_config import RecurrentConfig
from gpu_worker.models.weights import RankRows, Weights, in_tensors


class Projections(Protocol):
    """From hidden states to all that a delta net needs of its tokens."""

    def __call__(self, hidden: Tensor, /) -> tuple[Tensor, Tensor, Tensor]:
        """Of hidden [tokens, hidden_size]: the convolution's inputs [tokens, channels], the gates of results
        [tokens, values], and the gates of `StepRecurrence.delta_rule`. Rows may be parts of longer ones."""


class JointProjections:
    """Two products: queries, keys, values and gates of results; and what updates and decays come from."""

    def __init__(
        self, names: DeltaNet, sizes: RecurrentConfig, hidden: int, weights: Weights, kernels: Kernels
    ) -> None:
        self._inputs = kernels.linear(_inputs(names, sizes, hidden, weights))
        self._gates = kernels.linear(_gates(names, sizes, hidden, weights), dtype=torch.float32)
        self._channels = sizes.channels

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Projections`."""
        inputs = self._inputs(hidden)
        return inputs[:, : self._channels], inputs[:, self._channels :], self._gates(hidden)


class LowRankProjections:
    """Gates of results, and decays, come from a few numbers each, which all ranks compute."""

    def __init__(
        self, names: KimiDelta, sizes: RecurrentConfig, hidden: int, weights: Weights, kernels: Kernels
    ) -> None:
        self._inputs = kernels.linear(weights.split_outputs(_qkv(names, sizes), hidden, False)[0])
        assert names.down is not None
        down, _ = weights.merged(dict.fromkeys(names.down, sizes.rank), hidden, False)
        self._down = kernels.linear(down)

        def product(name: str, rows: int, columns: int, dtype: torch.dtype | None) -> Linear:
            weight, _ = weights.split_outputs({name: [RankRows(rows)]}, columns, False)
            return kernels.linear(weight, dtype=dtype)

        self._output_gates = product(names.output_gates, sizes.values, sizes.rank, None)
        self._updates = product(names.updates, sizes.heads, hidden, torch.float32)
        self._decays = product(names.decays, sizes.decays, sizes.rank, torch.float32)

    def __call__(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `Projections`."""
        for_results, for_decays = (each.contiguous() for each in self._down(hidden).chunk(2, dim=1))
        gates = torch.cat((self._updates(hidden), self._decays(for_decays)), dim=1)
        return self._inputs(hidden), self._output_gates(for_results), gates


def read_decay(names: DeltaNet, sizes: RecurrentConfig, weights: Weights) -> Decay:
    """The decays of this rank's heads. Raises `ModelError`."""
    rank, count, exact = weights.ranks.rank, weights.ranks.count, weights.of(torch.float32)
    heads = slice(rank * sizes.heads, (rank + 1) * sizes.heads)
    rate = exact.flat(names.decay_rate, heads, count * sizes.heads)
    mine = slice(rank * sizes.decays, (rank + 1) * sizes.decays)
    bias = exact.rows(names.decay_bias, mine, count * sizes.decays)
    return Decay(-rate.exp(), bias, sizes.decay_bound)


def _qkv(names: DeltaNet, sizes: RecurrentConfig) -> dict[str, Sequence[RankRows]]:
    """Queries, keys and values by tensor."""
    return in_tensors(names.qkv, [RankRows(rows) for rows in (sizes.queries, sizes.queries, sizes.values)])


def _inputs(names: DeltaNet, sizes: RecurrentConfig, hidden: int, weights: Weights) -> Tensor:
    """The joint projection [channels + values, hidden]: queries, keys, values, gates of results."""
    if not weights.has_any(f"{names.inputs_by_head}."):
        parts = _qkv(names, sizes) | {names.output_gates: [RankRows(sizes.values)]}
        return weights.split_outputs(parts, hidden, False)[0]
    own, each = sizes.key_size, sizes.values // sizes.key_heads
    return _by_part(names.inputs_by_head, [own, own, each, each], sizes, hidden, weights)


def _gates(names: DeltaNet, sizes: RecurrentConfig, hidden: int, weights: Weights) -> Tensor:
    """The joint projection [heads + decays, hidden] to what updates and decays are computed from."""
    if not weights.has_any(f"{names.gates_by_head}."):
        parts = {names.updates: [RankRows(sizes.heads)], names.decays: [RankRows(sizes.decays)]}
        return weights.split_outputs(parts, hidden, False)[0]
    each = sizes.heads // sizes.key_heads
    return _by_part(names.gates_by_head, [each, each], sizes, hidden, weights)


def _by_part(
    name: str, parts: Sequence[int], sizes: RecurrentConfig, hidden: int, weights: Weights
) -> Tensor:
    """A projection whose rows lie by key head, with them by part: `parts` has the rows of each, of a key
    head."""
    rows = sizes.key_heads * sum(parts)
    weight, _ = weights.split_outputs({name: [RankRows(rows)]}, hidden, False)
    order = torch.arange(rows, device=weight.device).view(sizes.key_heads, -1)
    return weight[torch.cat([part.flatten() for part in torch.split(order, list(parts), dim=1)])]
