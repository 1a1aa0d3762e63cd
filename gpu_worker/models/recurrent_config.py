"""Recurrent layers in config.json: which layers, and their sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gpu_worker.kernels.kv_sizes import StateShape
from gpu_worker.models.families.family import DeltaNet, KimiDelta, Mamba, ShortConvolution
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
    update_scale: float = 1.0
    """See `DeltaRule`."""
    by_row: bool = False
    """Each dimension of a key has a decay of its own. Otherwise each head has one."""
    decay_bound: float = 0.0
    """See `Decay`."""
    rank: int = 0
    """Numbers that a token's decays are computed from, and gates of its results. 0: these are computed from
    hidden states."""

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
    def decays(self) -> int:
        """Decays of a token, of all heads together."""
        return self.heads * self.key_size if self.by_row else self.heads

    def weights(self, hidden: int) -> int:
        """Weights of a layer's projections from hidden states of this size, and of that to hidden states."""
        if not self.heads:
            return 4 * self.channels * hidden
        updates = (self.gates - 1) * self.heads
        low = self.rank or hidden
        down = 2 * self.rank * hidden
        return (self.channels + self.values + updates) * hidden + down + (self.values + self.decays) * low

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
    if (activation := values.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise values.wrong("hidden_act", f"{activation!r} is not supported: the convolution has silu")
    return _kimi_delta(kind, values, layers) if isinstance(kind, KimiDelta) else _delta_net(values, layers)


def _delta_net(values: Values, layers: int) -> RecurrentConfig:
    """Gated delta nets. Sizes that config.json leaves out are those of OLMo Hybrid."""
    if (gate := values.get("output_gate_type", "silu")) not in ("silu", "swish"):
        raise values.wrong("output_gate_type", f"{gate!r} is not supported: the norm's gate is silu")
    key_heads, heads = (
        values.positive(f"linear_num_{part}_heads", values.positive("num_attention_heads"))
        for part in ("key", "value")
    )
    if heads % key_heads:
        raise values.wrong("linear_num_value_heads", f"{heads} are no multiple of {key_heads} key heads")
    usual = max(1, int(0.75 * values.positive("hidden_size") / key_heads))
    key_size = values.positive("linear_key_head_dim", usual)
    value_size = values.positive("linear_value_head_dim", 2 * key_size)
    return RecurrentConfig(
        _layers(values, layers, "linear_attention"),
        values.positive("linear_conv_kernel_dim"),
        2 * key_heads * key_size + heads * value_size,
        key_heads,
        heads,
        key_size,
        value_size,
        values.flag("value_heads_tiled") and heads > key_heads,
        update_scale=2.0 if values.flag("linear_allow_neg_eigval") else 1.0,
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


def _kimi_delta(kind: KimiDelta, values: Values, layers: int) -> RecurrentConfig:
    """Kimi Delta Attention: with the keys of `linear_attn_config`, as Kimi Linear is published; with those
    that transformers writes; or with those of Ling 3."""
    given = values.object("linear_attn_config")
    heads = given.positive(
        "num_heads", values.positive("linear_num_heads", values.positive("num_attention_heads"))
    )
    size = given.positive(
        "head_dim", values.positive("linear_head_dim", values.positive("kda_head_dim", 128))
    )
    taps = given.positive(
        "short_conv_kernel_size",
        values.positive("linear_conv_kernel_dim", values.positive("short_conv_kernel_size", 4)),
    )
    if values.get("layer_types") is None and values.get("full_attention_interval") is None:
        values = values.but("layer_types", _kimi_layers(given, layers))
    return RecurrentConfig(
        _layers(values, layers, "linear_attention"),
        taps,
        3 * heads * size,
        heads,
        heads,
        size,
        size,
        by_row=True,
        decay_bound=_decay_bound(values),
        rank=size if kind.down else 0,
    )


def _decay_bound(values: Values) -> float:
    if not values.flag("kda_safe_gate"):
        return 0.0
    bound = values.get("kda_lower_bound", -5.0)
    if not isinstance(bound, int | float) or not -1e30 < bound < 0:
        raise values.wrong("kda_lower_bound", f"a negative number is needed, not {bound!r}")
    return float(bound)


def _kimi_layers(given: Values, layers: int) -> list[str]:
    """Kinds of all layers. `linear_attn_config` numbers them from 1. Without its lists each fourth layer from
    number 5 on has attention."""
    kinds = {"full_attn_layers": "full_attention", "kda_layers": "linear_attention"}
    if any(given.get(key) is None for key in kinds):
        usual = [number > 0 and number % 4 == 0 for number in range(layers)]
        return ["full_attention" if attends else "linear_attention" for attends in usual]
    found = dict[int, str]()
    for key, kind in kinds.items():
        numbers = given.get(key)
        if not isinstance(numbers, list) or not all(number in range(1, layers + 1) for number in numbers):
            raise given.wrong(key, f"a list of numbers from 1 to {layers} is needed, not {numbers!r}")
        found |= dict.fromkeys(numbers, kind)
    if missing := [number for number in range(1, layers + 1) if number not in found]:
        raise given.wrong("kda_layers", f"neither it nor full_attn_layers has layer {missing[0]}")
    return [found[number] for number in range(1, layers + 1)]


def _layers(values: Values, layers: int, name: str) -> frozenset[int]:
    """Numbers of the recurrent layers, which `layer_types` calls `name`."""
    return _numbers(_kinds(values, layers, name), name)


def _numbers(kinds: Sequence[str], *names: str) -> frozenset[int]:
    return frozenset(number for number, kind in enumerate(kinds) if kind in names)


_OLD = {"mamba": "linear_attention", "attention": "full_attention"}
"""Older names of kinds of layers."""


def _kinds(values: Values, layers: int, name: str, others: Sequence[str] = ()) -> list[str]:
    """Kind of each layer by `layer_types`: `name` of recurrent ones, full_attention, or one of `others`.

    Without `layer_types` the layers in `full_attn_idxs` have attention, or each `full_attention_interval`-th
    one; none if that is 0.
    """
    types = values.get("layer_types")
    if types is None:
        every = values.count("full_attention_interval", 4)
        attend = values.get("full_attn_idxs", list(range(every - 1, layers, every)) if every else [])
        if not isinstance(attend, list):
            raise values.wrong("full_attn_idxs", f"a list is needed, not {attend!r}")
        types = ["full_attention" if number in attend else name for number in range(layers)]
    if not isinstance(types, list) or len(types) != layers:
        raise values.wrong("layer_types", f"a list of {layers} is needed, not {types!r}")
    kinds = [_OLD.get(kind, kind) if isinstance(kind, str) else kind for kind in types]
    if unknown := [kind for kind in kinds if kind not in (name, "full_attention", *others)]:
        raise values.wrong("layer_types", f"{unknown[0]!r} is not supported")
    return kinds
