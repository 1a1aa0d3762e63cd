"""What an entry of the table of architectures says: `Family`, with the names of its checkpoint's tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Names:
    """What a checkpoint calls its tensors, without `.weight` and `.bias`. None: the family has none of it."""

    base: str = "model."
    """What all names but the head's begin with; some checkpoints leave it out."""
    embedding: str = "embed_tokens"
    positions: str | None = None
    """The table of learned positions."""
    embedding_norm: str | None = None
    layer: str = "layers.{}."
    """What the names of a layer begin with, with its number; those below follow it."""
    before_attention: str | None = "input_layernorm"
    after_attention: str | None = None
    """Of what attention adds, before it is added."""
    before_mlp: str | None = "post_attention_layernorm"
    after_mlp: str | None = None
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    """One after the other, or one name for all three."""
    query_norm: str | None = None
    key_norm: str | None = None
    out: str = "self_attn.o_proj"
    up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    """Gate and up, or one name for both; where nothing is gated, what goes into the activation."""
    down: str = "mlp.down_proj"
    final_norm: str = "norm"
    head: str = "lm_head"


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
    up: tuple[str, str] = ("gate_proj", "up_proj")
    """Tensors of an expert's gate and up, after its prefix."""
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
    shared: str = ""
    """Prefix of the tensors of the shared expert, which every token goes to. Empty: there is none."""
    shared_gate: str | None = None
    """Tensor of the gate of the shared expert. None: it has no gate."""


@dataclass(frozen=True, slots=True)
class Latent:
    """Latent attention: what the checkpoint calls its tensors."""

    query: str = "self_attn.q_proj"
    """Where queries are not compressed; where they are, what follows."""
    query_down: str = "self_attn.q_a_proj"
    query_norm: str = "self_attn.q_a_layernorm"
    query_up: str = "self_attn.q_b_proj"
    down: str = "self_attn.kv_a_proj_with_mqa"
    """To the compressed numbers of keys and values, and the rotated ones."""
    norm: str = "self_attn.kv_a_layernorm"
    up: str = "self_attn.kv_b_proj"
    """From them, key and value of one head after the other."""


@dataclass(frozen=True, slots=True)
class Family:
    """An architecture. Of `bool | str` a name is the key in config.json that says so."""

    names: Names = field(default_factory=Names)
    keys: Mapping[str, str] = field(default_factory=dict)
    """What its config.json calls that which others call otherwise: by the usual name. `a.b`: b within a."""
    expects: Mapping[str, Any] = field(default_factory=dict)
    """Values of keys that the entry stands for; null and missing are no other than false."""
    otherwise: "Family | None" = None
    """What it is with other values of those keys. None: what it is then, transformers runs."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What a key means when it is left out, by its usual name, where that is not what it means for Llama."""
    norm: Literal["rms", "wide", "shifted", "layer", "bare"] = "rms"
    """Root mean square; `wide`: multiplied by its weight before rounding; `shifted`: that, with 1 + weight;
    `layer`: layer normalization, with a bias if the checkpoint has one; `bare`: that, with no weight."""
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    head_bias: bool = False
    gated: bool = True
    """The MLP has gates: activation(gate) * up, then down. Otherwise it is up, activation, down."""
    parallel: bool | str = False
    """Attention and MLP read the same residual stream, instead of the MLP after attention. They share a norm
    if there is no `before_mlp`."""
    rotary: bool = True
    rotates_unwindowed: bool = True
    """If not, layers that see everything, beside others with windows, have no positions."""
    linear_biases: bool | str = False
    """Positions get in as biases of attention's scores (`alibi.py`), and not by rotation."""
    scales_biases: bool = False
    """Those are multiplied by what scores are multiplied by."""
    position_offset: int = 0
    """Learned positions begin at that row of their table."""
    norms_whole: bool = False
    """Queries and keys are normalized over all their heads at once, not each head by itself."""
    one_key_head: bool | str = False
    """All query heads share one key head, whatever else config.json says."""
    by_head: bool = False
    """Rows of the joint projection are, for one key head after the other, its queries, key and value."""
    transposed: bool = False
    """Weights of the layers' products are [in, out]."""
    scales_embeddings: bool = False
    """Embeddings are multiplied by the square root of their size."""
    windowed: bool = False
    """Its `sliding_window` is meant; others carry one that nobody reads."""
    experts: Experts | None = None
    latent: Latent | None = None

    def usual(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What config.json says, by usual names, with the family's defaults where it says nothing."""
        renamed = {
            usual: found for usual, own in self.keys.items() if (found := _at(values, own)) is not None
        }
        given = {key: value for key, value in values.items() if value is not None}
        usual = {**self.defaults, **given, **renamed}
        if self.one_key_head is True or usual.get(str(self.one_key_head)) is True:
            usual["num_key_value_heads"] = 1
        return usual

    def fitting(self, values: Mapping[str, Any]) -> "Family | None":
        """This entry, or the one of `otherwise` that stands for such a config.json."""
        if not self.unlike(values):
            return self
        return self.otherwise.fitting(values) if self.otherwise else None

    def unlike(self, values: Mapping[str, Any]) -> list[str]:
        """Keys whose values are others than the entry stands for."""
        usual = self.usual(values)
        return [key for key, value in self.expects.items() if (usual.get(key) or None) != (value or None)]


def _at(values: Mapping[str, Any], path: str) -> Any:
    """What stands at `a.b`: under b in the object under a; None if there is nothing."""
    key, _, rest = path.partition(".")
    found = values.get(key)
    return _at(found, rest) if rest and isinstance(found, Mapping) else None if rest else found
