"""Recurrent layers in config.json: which layers, and their sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpu_worker.kernels.kv_sizes import StateShape
from gpu_worker.models.families.family import DeltaNet, Mamba, ShortConvolution
from gpu_worker.models.values import Values


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """The recurrent layers of a model, all of one kind."""

    layers: frozenset[int]
    """Their numbers."""
    taps: int
    """Tokens that a filter of the convolution sees, the newest one included."""
    channels: int
    """Channels of the convolution."""
    key_heads: int = 0
    """Heads of queries and keys of a gated delta net; groups of a state space, each with a B as its key and a
    C as its query."""
    heads: int = 0
    """Heads of values, and states; a multiple of `key_heads`. 0: layers are convolutions and nothing else."""
    key_size: int = 0
    value_size: int = 0
    tiled: bool = False
    """Heads of values that share a key head are `key_heads` apart, as llama.cpp orders them. Otherwise they
    are side by side."""
    bias: bool = False
    """Projections have biases."""
    filter_bias: bool = False
    """The convolution has biases."""
    gates: int = 2
    """Numbers of a head that its decay and its update are computed from: a state space has one for both."""
    shortest_step: float = 0.0
    """See `StateSpace`."""
    longest_step: float = math.inf
    """See `StateSpace`."""
    norm: Literal["none", "before", "after"] = "after"
    """Norm of a state space's results: before they are gated, or after that."""
    norm_eps: float = 1e-6
    """Of this norm."""
    alone: frozenset[int] | None = None
    """Numbers of layers that are an MLP or experts and nothing else. No other layer has these then. None: all
    layers have."""
    beside_attention: bool = False
    """The layers have attention, too, on the same inputs."""

    @property
    def state(self) -> StateShape:
        """What a layer keeps."""
        return StateShape(self.taps - 1, self.channels, self.heads, self.key_size, self.value_size)

    @property
    def without_attention(self) -> frozenset[int]:
        """Numbers of the layers without attention."""
        alone = self.alone or frozenset()
        return alone if self.beside_attention else alone | self.layers

    @property
    def queries(self) -> int:
        """Dimensions of a token's queries, and of its keys, of all heads together."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        """Dimensions of a token's values, of all heads together."""
        return self.heads * self.value_size

    @property
    def projected(self) -> int:
        """Outputs of a layer's projections from hidden states, and inputs of that to hidden states."""
        return self.channels + 2 * self.values + self.gates * self.heads if self.heads else 4 * self.channels

    def part(self, ranks: int) -> "RecurrentConfig | None":
        """One of `ranks` equal parts: whole key heads or groups, or channels. None: they cannot be split."""
        if (self.key_heads or self.channels) % ranks or (self.tiled and ranks > 1):
            return None
        return replace(
            self,
            channels=self.channels // ranks,
            key_heads=self.key_heads // ranks,
            heads=self.heads // ranks,
        )


def read_recurrent(
    kind: DeltaNet | Mamba | ShortConvolution | None, values: Values, layers: int
) -> RecurrentConfig | None:
    """The recurrent layers that config.json describes. Raises `ModelError` with the key at fault."""
    if kind is None:
        return None
    if isinstance(kind, ShortConvolution):
        numbers = _layers(values, layers, "conv")
        channels, biased = values.positive("hidden_size"), values.flag("conv_bias")
        taps = values.positive("conv_L_cache", 3)
        return RecurrentConfig(numbers, taps, channels, bias=biased, filter_bias=biased)
    if isinstance(kind, Mamba):
        return _mamba(kind, values, layers)
    key_heads, heads = values.positive("linear_num_key_heads"), values.positive("linear_num_value_heads")
    if heads % key_heads:
        raise values.wrong("linear_num_value_heads", f"{heads} are no multiple of {key_heads} key heads")
    key_size, value_size = (values.positive(f"linear_{part}_head_dim") for part in ("key", "value"))
    return RecurrentConfig(
        _layers(values, layers, "linear_attention"),
        values.positive("linear_conv_kernel_dim"),
        2 * key_heads * key_size + heads * value_size,
        key_heads,
        heads,
        key_size,
        value_size,
        values.flag("value_heads_tiled") and heads > key_heads,
    )


def _mamba(kind: Mamba, values: Values, layers: int) -> RecurrentConfig:
    """State spaces."""
    heads, groups = values.positive("mamba_n_heads"), values.positive("mamba_n_groups", 1)
    if heads % groups:
        raise values.wrong("mamba_n_groups", f"{groups} groups do not divide {heads} heads")
    normed, first = values.fact(kind.normed), values.fact(kind.norm_first)
    head_size, state_size = _head_size(values, heads), values.positive("mamba_d_state")
    key = "mamba_hidden_act" if values.get("mamba_hidden_act") else "hidden_act"
    if (activation := values.get(key, "silu")) not in ("silu", "swish"):
        raise values.wrong(key, f"the convolution's activation is silu, not {activation!r}")
    shortest, longest = _steps(values)
    others = ("mlp", "moe") if kind.alone else ()
    if kind.beside_attention:
        values = values.but("layer_types", ["linear_attention"] * layers)
    kinds = _kinds(values, layers, "linear_attention", others)
    return RecurrentConfig(
        _numbers(kinds, "linear_attention"),
        values.positive("mamba_d_conv", 4),
        heads * head_size + 2 * groups * state_size,
        groups,
        heads,
        state_size,
        head_size,
        bias=values.flag("mamba_proj_bias"),
        filter_bias=values.flag("mamba_conv_bias", True),
        gates=1,
        shortest_step=shortest,
        longest_step=longest,
        norm="none" if not normed else "before" if first else "after",
        norm_eps=values.number("norm_eps", values.number("rms_norm_eps", 1e-6)),
        alone=_numbers(kinds, *others) if kind.alone else None,
        beside_attention=kind.beside_attention,
    )


def _head_size(values: Values, heads: int) -> int:
    """Size of a head of a state space."""
    if values.get("mamba_d_head", "auto") != "auto":
        return values.positive("mamba_d_head")
    usual = values.positive("mamba_expand", 2) * values.positive("hidden_size")
    whole = values.positive("mamba_d_ssm", usual)
    if whole % heads:
        raise values.wrong("mamba_n_heads", f"{heads} heads do not divide {whole} dimensions")
    return whole // heads


def _steps(values: Values) -> tuple[float, float]:
    """The shortest and the longest step of a state space."""
    if values.get("shortest_time_step") is not None:
        return values.number("shortest_time_step"), math.inf
    limits = values.get("time_step_limit", [0.0, math.inf])
    match limits:
        case [int() | float() as shortest, int() | float() as longest] if 0 <= shortest <= longest:
            return float(shortest), float(longest)
        case [int() | float() as shortest, {"__float__": "Infinity"}] if shortest >= 0:  # as transformers 5
            return float(shortest), math.inf
    raise values.wrong("time_step_limit", f"two numbers are needed, the smaller one first, not {limits!r}")


def _layers(values: Values, layers: int, name: str) -> frozenset[int]:
    """Numbers of the recurrent layers, which `layer_types` calls `name`."""
    return _numbers(_kinds(values, layers, name), name)


def _numbers(kinds: Sequence[str], *names: str) -> frozenset[int]:
    return frozenset(number for number, kind in enumerate(kinds) if kind in names)


_OLD = {"mamba": "linear_attention", "attention": "full_attention"}
"""Older names of kinds of layers."""


def _kinds(values: Values, layers: int, name: str, others: Sequence[str] = ()) -> list[str]:
    """Kind of each layer by `layer_types`: `name` of recurrent ones, full_attention, or one of `others`.

    Without `layer_types` each `full_attention_interval`-th layer has attention, or those in `full_attn_idxs`.
    """
    types = values.get("layer_types")
    if types is None:
        every = values.positive("full_attention_interval", 4)
        attend = values.get("full_attn_idxs", list(range(every - 1, layers, every)))
        if not isinstance(attend, list):
            raise values.wrong("full_attn_idxs", f"a list is needed, not {attend!r}")
        types = ["full_attention" if number in attend else name for number in range(layers)]
    if not isinstance(types, list) or len(types) != layers:
        raise values.wrong("layer_types", f"a list of {layers} is needed, not {types!r}")
    kinds = [_OLD.get(kind, kind) if isinstance(kind, str) else kind for kind in types]
    if unknown := [kind for kind in kinds if kind not in (name, "full_attention", *others)]:
        raise values.wrong("layer_types", f"{unknown[0]!r} is not supported")
    return kinds
