"""`Family`, an entry of the table of architectures, with the names of its checkpoint's tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Names:
    """Names of a checkpoint's tensors, without `.weight` and `.bias`. None: the family has no such tensor."""

    base: str = "model."
    """Prefix of all names except the head's. Some checkpoints leave it out."""
    embedding: str = "embed_tokens"
    positions: str | None = None
    """Table of learned positions."""
    embedding_norm: str | None = None
    layer: str = "layers.{}."
    """Prefix of a layer's tensors, after `base`, with the layer's number. The names below follow it."""
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    """Norm of attention's result, before it is added to the residual."""
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    """Norm of the MLP's result, before it is added to the residual."""
    sinks: str | None = None
    """Learned attention sinks, a logit of each head."""
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """Names of the three projections, or one name for all three in one tensor."""
    query_norm: str | None = None
    key_norm: str | None = None
    out: str = "self_attn.o_proj"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    """Names of gate and up, or one name for both in one tensor. Without gates: the name of up."""
    down: str = "mlp.down_proj"
    final_norm: str = "norm"
    head: str = "lm_head"
    score: str = "score"
    """Classification head, of a classifier in place of `head`."""

    def bare(self, name: str) -> str:
        """A tensor's name without `base`, or without what a model without a head has of it: OPT's `decoder.`
        of `model.decoder.`."""
        return name.removeprefix(self.base).removeprefix(self.base.partition(".")[2])


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts: keys of config.json, names of the checkpoint's tensors, and how tokens are
    routed."""

    intermediate_size: str = "moe_intermediate_size"
    """Key of config.json with the intermediate size of an expert."""
    router: str = "mlp.gate"
    """Tensor of the router."""
    expert: str = "mlp.experts.{}."
    """Prefix of the tensors of an expert, with the expert's number."""
    up: tuple[str, ...] = ("gate_proj", "up_proj")
    """Tensors of an expert's gate and up, after its prefix, or one name for both in one tensor. Without
    gates: the name of up."""
    down: str = "down_proj"
    """Tensor of an expert's down, after its prefix."""
    normalized: bool | str = "norm_topk_prob"
    """The routing weights of a token are divided by their sum. A name: the key of config.json that says
    so."""
    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    """Function from router logits to scores."""
    score_correction_bias: str | None = None
    """Tensor added to scores to select experts, but not to routing weights (DeepSeek-V3,
    arXiv:2412.19437)."""
    grouped: bool = False
    """Experts may have groups (n_group and topk_group in config.json)."""
    group_top_k: int = 1
    """Number of a group's best experts whose scores, summed, are the score of the group."""
    clamped: bool = False
    """Experts are those of gpt-oss: `products.Clamped`. They and the router have biases."""
    stacked: bool = False
    """A tensor may have all experts of a layer: see `stacked.py`."""
    latent: tuple[str, str] | None = None
    """Tensors of the projections from hidden states to the few dimensions that experts may work in
    (moe_latent_size in config.json), and back. The shared expert reads hidden states."""
    shared: str = ""
    """Prefix of the tensors of the shared expert, which every token goes to. Empty: there is none."""
    shared_gate: str | None = None
    """Tensor of the gate of the shared expert. None: it has no gate."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention: names of the checkpoint's tensors."""

    query: str = "self_attn.q_proj"
    """Projection of queries that are not compressed."""
    query_down: str = "self_attn.q_a_proj"
    """Projection to compressed queries."""
    query_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    """Projection from compressed queries to queries."""
    down: str = "self_attn.kv_a_proj_with_mqa"
    """Projection to the compressed row of keys and values and the rotated key."""
    norm: str = "self_attn.kv_a_layernorm"
    up: str = "self_attn.kv_b_proj"
    """Projection from the compressed row to key and value of each head, head after head."""
    gates: str | None = None
    """Projection to a gate of each head, whose sigmoid its result is multiplied by. None: there are none."""
    indexer: str | None = None
    """Prefix of the tensors of a layer's indexer, which selects `index_topk` tokens to attend to. None:
    layers have no indexers."""


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta nets: names of the checkpoint's tensors."""

    qkv: tuple[str, ...] = ("linear_attn.in_proj_qkv",)
    """Projections of queries, keys and values, or one name for all three in one tensor."""
    output_gates: str = "linear_attn.in_proj_z"
    """Projection to the gates of results."""
    inputs_by_head: str = "linear_attn.in_proj_qkvz"
    """These four in one tensor, by key head."""
    updates: str = "linear_attn.in_proj_b"
    """Projection to what updates are computed from."""
    decays: str = "linear_attn.in_proj_a"
    """Projection to what decays are computed from."""
    gates_by_head: str = "linear_attn.in_proj_ba"
    """These two in one tensor, by key head."""
    filters: tuple[str, ...] = ("linear_attn.conv1d",)
    """Of queries, keys and values, or one name for all three in one tensor."""
    decay_rate: str = "linear_attn.A_log"
    """Logarithm of the rate."""
    decay_bias: str = "linear_attn.dt_bias"
    norm: str = "linear_attn.norm"
    """Norm of each head's results."""
    norm_eps: float | None = None
    """Its epsilon. None: that of other norms."""
    norm_float32: bool = False
    """It multiplies in float32, as `rms_float32`."""
    activation: Literal["silu", "sigmoid"] = "silu"
    """Activation of the gates of results."""
    out: str = "linear_attn.out_proj"


@dataclass(frozen=True, slots=True)
class KimiDelta(DeltaNet):
    """Kimi Delta Attention (Kimi Team 2025, "Kimi Linear", arXiv:2510.26692): names of the checkpoint's
    tensors. Each dimension of a key has a decay of its own."""

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output_gates: str = "self_attn.g_proj"
    updates: str = "self_attn.b_proj"
    decays: str = "self_attn.f_proj"
    filters: tuple[str, ...] = ("self_attn.q_conv1d", "self_attn.k_conv1d", "self_attn.v_conv1d")
    decay_rate: str = "self_attn.A_log"
    decay_bias: str = "self_attn.dt_bias"
    norm: str = "self_attn.o_norm"
    norm_float32: bool = True
    activation: Literal["silu", "sigmoid"] = "sigmoid"
    out: str = "self_attn.o_proj"
    down: tuple[str, str] | None = None
    """Projections from hidden states to the few numbers that `output_gates` and `decays` take. None: these
    take hidden states."""


@dataclass(frozen=True, slots=True)
class Mamba:
    """State spaces as Mamba-2 has them (Dao and Gu 2024): names of the checkpoint's tensors after `prefix`,
    and what is beside them."""

    prefix: str = "mamba."
    inputs: str = "in_proj"
    """Projection to the gates of results, x, B, C and steps."""
    filters: str = "conv1d"
    decay_rate: str = "A_log"
    """Logarithm of the rate."""
    decay_bias: str = "dt_bias"
    skip: str = "D"
    norm: str = "norm"
    """Norm of the results of each group's heads."""
    normed: bool | str = True
    """Results are normalized."""
    norm_first: bool | str = False
    """They are normalized before they are gated."""
    out: str = "out_proj"
    alone: bool = False
    """A layer is such a one, attention, an MLP or experts, and nothing else. Its only norm is
    `before_attention`."""
    beside_attention: bool = False
    """Each layer is such a one and attention, on the same inputs."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """Layers for multi-token prediction: names of the tensors of the first one, and what is beside them."""

    prefix: str = ""
    """Of all its tensors. Empty: it is numbered as if it were the layer after the last one."""
    layer: str = ""
    """Prefix of the tensors of its decoder layer, after `prefix`."""
    embedding_norm: str = "enorm"
    hidden_norm: str = "hnorm"
    joint: str = "eh_proj"
    """Projection of a token's embedding and the hidden state before it, in this order, to its inputs."""
    final_norm: str = "shared_head.norm"


@dataclass(frozen=True, slots=True)
class ShortConvolution:
    """Gated convolutions of a few tokens: names of the checkpoint's tensors."""

    inputs: str = "conv.in_proj"
    """Projection to the gates of inputs, those of results, and inputs."""
    filters: str = "conv.conv"
    out: str = "conv.out_proj"


OPTIONAL = frozenset(
    (
        *("alibi_bias_max", "attention_multiplier", "attn_logit_softcapping", "clip_qkv"),
        *("embedding_multiplier", "final_logit_softcapping", "indexer_rope_interleave", "logit_scale"),
        *("logits_scaling", "no_rope_layer_interval", "no_rope_layers", "norm_eps", "query_pre_attn_scalar"),
        *("residual_multiplier", "rope_interleave", "rotary_dim", "routed_scaling_factor"),
    )
)
"""Canonical names of keys that change the arithmetic of some families: see `Family.reads`."""


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture. Of a field `bool | str` a string is the key of config.json that has the value."""

    names: Names = field(default_factory=Names)
    keys: Mapping[str, str] = field(default_factory=dict)
    """The family's own names of keys of config.json, by canonical name. `a.b`: key b of object a.

    Canonical names are those that `models/config.py` reads, mostly Llama's.
    """
    reads: tuple[str, ...] = ()
    """Keys of `OPTIONAL` that config.json of this family may have. Others change nothing, as in transformers,
    but for those under a name of `keys`."""
    expects: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that a config.json must have to match this entry. Null and missing count as false."""
    otherwise: "Family | None" = None
    """The entry to try if `expects` does not match. None: transformers runs such a model."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of missing keys, by canonical name: transformers', where `models/config.py` has others."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys, by canonical name, whatever config.json says: transformers does not read them."""
    means: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Values that mean others in this family, by canonical name of their key."""
    norm: Literal["rms", "rms_float32", "rms_one_plus", "layer", "layer_without_weight"] = "rms"
    """Kind of all norms.

    rms                     RMS norm, rounded to the activations' type and then multiplied by its weight
    rms_float32             RMS norm, multiplied by its weight in float32 and then rounded
    rms_one_plus            as rms_float32, multiplied by 1 + weight
    layer                   layer norm, with a bias if the checkpoint has one
    layer_without_weight    layer norm without weight and bias
    """
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    head_bias: bool = False
    gated: bool = True
    """The MLP and experts have gates: activation(gate) * up, then down. Otherwise they are up, activation,
    down."""
    parallel: bool | str = False
    """Attention and MLP read the same residual stream, instead of the MLP after attention. They share a norm
    if there is no `before_mlp`."""
    rotary: bool | str = True
    """Queries and keys have rotary embeddings. A string: the key of config.json that is "rope" then."""
    rotary_by_base: bool = False
    """If config.json has null for the base (rope_theta), there is no rotary embedding."""
    rotates_in_part: bool = False
    """`partial_rotary_factor` counts for every type of rotary embedding. False: not for the plain one."""
    rotates_full_attention: bool | str = True
    """Layers with full attention have rotary embeddings. A string: the key of config.json that is null
    then."""
    window_base: float | str | None = None
    """Base of the rotary embedding of layers with a window, which is one of its own then: a number, or the
    key of config.json that has it. None: all layers have the same embedding."""
    scales_queries: bool = False
    """Queries may grow with their positions (`rope.RopeConfig.query_growth`)."""
    alibi: bool | str = False
    """Positions are linear biases of attention scores (`alibi.py`) instead of rotary embeddings."""
    scales_alibi: bool = False
    """Linear biases are multiplied by the factor of attention scores."""
    position_offset: int = 0
    """Row of position 0 in the table of learned positions."""
    norms_all_heads: bool = False
    """Queries and keys are normalized over all heads together, not each head by itself."""
    multi_query: bool | str = False
    """Multi-query attention: all query heads share one key head, whatever config.json says of key heads."""
    by_head: bool = False
    """Rows of the joint projection are ordered by key head: each head's queries, key and value."""
    transposed: bool = False
    """The checkpoint has the weights of layers as [in, out]."""
    scales_embeddings: bool = False
    """Embeddings are multiplied by sqrt(hidden_size)."""
    windowed: Literal["everywhere", "named", "late", "alternately", "unrotated", "by_pattern"] | int = 0
    """Which layers have the window `sliding_window` of config.json, if `layer_types` does not name them.
    `use_sliding_window` counts where it has a default.

    0               none, whatever config.json says
    everywhere      all, also if `layer_types` names them
    named           all
    late            those from `max_window_layers` on
    alternately     every other one below `max_window_layers`
    unrotated       those without rotary embedding
    by_pattern      all but each one of number `sliding_window_pattern`
    n               all but each n-th
    """
    gated_attention: bool = False
    """Results of attention are multiplied by the sigmoids of gates, which lie behind each head's queries in
    the projection of queries."""
    experts: Experts | None = None
    latent: Latent | None = None
    recurrent: DeltaNet | Mamba | ShortConvolution | None = None
    """Layers that `layer_types` does not name `full_attention` are such. None: all layers have attention."""
    multipliers: Mapping[str, Sequence[tuple[str, ...]]] = field(default_factory=dict)
    """Factors of a layer's weights, by tensor: the keys of config.json whose numbers are multiplied, for each
    part of the tensor. `key.n`: number n of a list."""
    recurrent_names: Names | None = None
    """Names of layers that are recurrent. None: they are those of the other layers."""
    predictor: Predictor = field(default_factory=Predictor)
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Parts of names of tensors in some checkpoints, or in adapters, and what they are in the names above."""
    left_out: tuple[str, ...] = ()
    """Prefixes of the names of further tensors that are not loaded."""

    def canonical(self, values: Mapping[str, Any], made: bool = False) -> dict[str, Any]:
        """The values of config.json by canonical name, with the family's defaults for missing keys.

        `made`: config.json was made of a GGUF file, and may have any key.

        A key that is null is not missing: null says that something is off. Only for `rope_parameters` it
        means the default, as in transformers.
        """
        given = {
            key: self.means[key].get(str(value), value) if key in self.means else value
            for key, value in values.items()
            if (value is not None or key != "rope_parameters")
            and (made or key not in OPTIONAL or key in self.reads)
        }
        renamed = {
            name: found for name, own in self.keys.items() if (found := _at(values, own)) is not _MISSING
        }
        known = {name: found for name, found in renamed.items() if found is not None}
        canonical = {**self.defaults, **renamed, **given, **known, **self.fixed}
        if self.multi_query is True or canonical.get(str(self.multi_query)) is True:
            canonical["num_key_value_heads"] = 1
        if isinstance(self.recurrent, Mamba) and self.recurrent.alone:
            canonical |= _kinds_of_layers(canonical)
        return canonical

    def fitting(self, values: Mapping[str, Any]) -> "Family | None":
        """This entry, or the first entry of `otherwise` that matches config.json. None: no entry matches."""
        if not self.unlike(values):
            return self
        return self.otherwise.fitting(values) if self.otherwise else None

    def unlike(self, values: Mapping[str, Any]) -> list[str]:
        """Keys whose values are not those of `expects`."""
        found = self.canonical(values)
        return [key for key, value in self.expects.items() if (found.get(key) or None) != (value or None)]


def biases(given: bool | str) -> dict[str, Any]:
    """Fields of a `Family` whose attention and MLP have biases everywhere or nowhere, as `given` says."""
    return dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), given)


_MISSING = object()
_PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def _kinds_of_layers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys by canonical name that follow from the kind of each layer, a list or Nemotron H's pattern."""
    kinds, pattern = values.get("layer_types"), values.get("hybrid_override_pattern")
    if kinds is None and isinstance(pattern, str):
        kinds = [_PATTERN.get(letter, letter) for letter in pattern]
    if not isinstance(kinds, list):
        return {}
    experts = ["sparse" if kind == "moe" else "dense" for kind in kinds]
    count = values.get("num_hidden_layers", len(kinds))
    return {"layer_types": kinds, "mlp_layer_types": experts, "num_hidden_layers": count}


def _at(values: Mapping[str, Any], path: str) -> Any:
    """The value at `a.b`: of key b in the object of key a. `_MISSING` if there is none."""
    key, _, rest = path.partition(".")
    found = values.get(key, _MISSING)
    return _at(found, rest) if rest and isinstance(found, Mapping) else _MISSING if rest else found
