"""Recurrent layers in config.json: which layers, and their sizes."""

from dataclasses import dataclass, replace

from gpu_worker.kernels.kv_sizes import StateShape
from gpu_worker.models.families.family import DeltaNet, ShortConvolution
from gpu_worker.models.values import Values


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """The recurrent layers of a model, all of one kind."""

    layers: frozenset[int]
    """Their numbers. Other layers have attention."""
    taps: int
    """Tokens that a filter of the convolution sees, the newest one included."""
    channels: int
    """Channels of the convolution."""
    key_heads: int = 0
    """Heads of queries and keys of a gated delta net."""
    heads: int = 0
    """Heads of values, and states; a multiple of `key_heads`. 0: layers are convolutions and nothing else."""
    key_size: int = 0
    value_size: int = 0
    tiled: bool = False
    """Heads of values that share a key head are `key_heads` apart, as llama.cpp orders them. Otherwise they
    are side by side."""
    bias: bool = False
    """Projections and convolution have biases."""

    @property
    def state(self) -> StateShape:
        """What a layer keeps."""
        return StateShape(self.taps - 1, self.channels, self.heads, self.key_size, self.value_size)

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
        return self.channels + 2 * self.values + 2 * self.heads if self.heads else 4 * self.channels

    def part(self, ranks: int) -> "RecurrentConfig | None":
        """One of `ranks` equal parts: whole key heads, or channels. None: they cannot be split."""
        if (self.key_heads or self.channels) % ranks or (self.tiled and ranks > 1):
            return None
        return replace(
            self,
            channels=self.channels // ranks,
            key_heads=self.key_heads // ranks,
            heads=self.heads // ranks,
        )


def read_recurrent(
    kind: DeltaNet | ShortConvolution | None, values: Values, layers: int
) -> RecurrentConfig | None:
    """The recurrent layers that config.json describes. Raises `ModelError` with the key at fault."""
    if kind is None:
        return None
    if isinstance(kind, ShortConvolution):
        numbers = _layers(values, layers, "conv")
        channels = values.positive("hidden_size")
        return RecurrentConfig(
            numbers, values.positive("conv_L_cache", 3), channels, bias=values.flag("conv_bias")
        )
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


def _layers(values: Values, layers: int, name: str) -> frozenset[int]:
    """Numbers of the recurrent layers, which `layer_types` calls `name`.

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
    if unknown := [kind for kind in types if kind not in (name, "full_attention")]:
        raise values.wrong("layer_types", f"{unknown[0]!r} is not supported")
    return frozenset(number for number, kind in enumerate(types) if kind == name)
