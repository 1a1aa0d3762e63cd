"""Recurrent layers: states in blocks, and what is computed with them.

A layer with attention keeps a key and a value of each token. A recurrent layer keeps one state of all tokens
so far. It is kept in the sequence's blocks: in each block the state after the last token that the block has.

    block               7               2               9
    keys, values    │ 0 1 2 3 │     │ 4 5 6 7 │     │ 8 9 · · │
    state           after 3         after 7         after 9        ◀── the sequence's state

So a full block has all that a sequence needs to go on behind it: a prefix that is shared, copied, swapped or
named brings its state along. A step reads the state from the block of the token before its first one, and
writes it to each block that it computes tokens of. No row may begin in the middle of a block unless the state
in it is that after the token before.

A state cannot be taken back to an earlier token. So a row with drafts reads its state and leaves it as it is.
When it is known which drafts hold, the layers compute that row's tokens once more, up to the last one that
holds, and write the state (`step/drafted_states.py`).
"""

import math
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gpu_worker.kernels.kv_sizes import StateShape


@dataclass(frozen=True, slots=True)
class StateCache:
    """The states of one recurrent layer."""

    shape: StateShape
    block_size: int
    """Tokens of a block."""
    inputs: Tensor
    """float32 [num_blocks, inputs, channels]: the convolution's latest inputs, oldest first."""
    matrices: Tensor | None = None
    """float32 [num_blocks, heads, key_size, value_size]. None: the layer is a convolution and nothing
    else."""

    def tensors(self) -> list[Tensor]:
        """As `LayerCache.tensors`."""
        return [self.inputs] if self.matrices is None else [self.inputs, self.matrices]


@dataclass(frozen=True, slots=True)
class Filters:
    """A causal convolution of each channel by itself, and what follows it."""

    weight: Tensor
    """float32 [taps, channels]: the filter of each channel, of the oldest token first."""
    bias: Tensor | None = None
    """float32 [channels]."""
    silu: bool = False
    """The activation silu is applied to the results."""


@dataclass(frozen=True, slots=True)
class Decay:
    """How much a state forgets with a token: it is multiplied by exp(g). Of x, which is computed of the
    token, g is rate * softplus(x + bias). With a bound it is bound * sigmoid(-rate * (x + bias))."""

    rate: Tensor
    """float32 [heads], negative."""
    bias: Tensor
    """float32 [heads]; or [heads * key_size], if each row of a matrix is forgotten by itself (Kimi Team 2025,
    "Kimi Linear", arXiv:2510.26692)."""
    bound: float = 0.0
    """Least g, negative. 0: there is no bound."""


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """What is the same for all tokens of a layer."""

    decay: Decay
    update_scale: float = 1.0
    """Bound of updates. With 2 a state may change its sign (Grazzi et al. 2024, "Unlocking State-Tracking in
    Linear RNNs Through Negative Eigenvalues")."""
    tiled: bool = False
    """Heads of values that share a key head are as many places apart as there are key heads. Otherwise they
    are side by side."""


@dataclass(frozen=True, slots=True)
class StateSpace:
    """Weights of the heads of a state space, and bounds of a token's step."""

    decay: Decay
    skip: Tensor
    """D, float32 [heads]: the factor with which a head's input is added to its result."""
    shortest: float = 0.0
    """The shortest step."""
    longest: float = math.inf
    """The longest step."""


class StepRecurrence(Protocol):
    """Recurrent layers within one step. The part of `StepAttention` that they need."""

    def convolve(self, inputs: Tensor, filters: Filters, cache: StateCache) -> Tensor:
        """[tokens, channels] to the same, in float32 and rounded once. Rows of inputs may be parts of longer
        ones."""

    def delta_rule(self, qkv: Tensor, gates: Tensor, rule: DeltaRule, cache: StateCache) -> Tensor:
        """The gated delta rule (Yang et al. 2024, "Gated Delta Networks"), token after token:

            S = exp(g) S;   S = S + k (b (v - S^T k))^T;   o = S^T q

        `qkv`: [tokens, 2 * key_heads * key_size + heads * value_size]: queries, keys, values. Queries and
        keys are normalized to length 1, and queries divided by sqrt(key_size). There are several heads of
        values for each key head: number h // (heads / key_heads) serves head h of the values, or number h %
        key_heads if they are `tiled`. `gates`: float32 [tokens, heads + numbers of decay.bias]. The sigmoids
        of the first numbers, times `update_scale`, are b of each head. `decay` makes g of the others: of each
        head, or of each row of each head's S.

        Returns [tokens, heads * value_size].

        On CPUs the result of a token has the same bits in whatever rows the tokens before it were computed.
        """

    def state_space(self, inputs: Tensor, steps: Tensor, space: StateSpace, cache: StateCache) -> Tensor:
        """A selective state space with one decay for each head (Dao and Gu 2024, "Transformers are SSMs",
        Mamba-2), token after token:

            S = exp(rate step) S + B (step x)^T;   y = S^T C + D x

        `inputs`: [tokens, heads * value_size + 2 * groups * key_size]: x of all heads, B and C of all groups.
        Group h // (heads / groups) serves head h. `steps`: float32 [tokens, heads]. The step of a head is
        softplus(its number + bias), within the bounds of `space`, whose `decay` has rate and bias.

        Returns [tokens, heads * value_size].

        On CPUs the result of a token has the same bits in whatever rows the tokens before it were computed.
        """
