"""The table of architectures: what is the same for all models of a family and stands in no config.json.

A decoder is always the same chain of blocks (`decoder.py`); what differs is which norms stand where, what
is biased, how positions get in, and what the checkpoint calls all of it. A new family of this kind is an
entry here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    """Mixture of experts: what config.json calls its numbers, and the checkpoint its tensors."""

    size: str = "moe_intermediate_size"
    router: str = "mlp.gate"
    expert: str = "mlp.experts.{}."
    up: tuple[str, str] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    normalized: bool | str = "norm_topk_prob"
    """The weights of a token's experts are made to add up to 1; a name: the key that says so."""
    scores: Literal["softmax", "sigmoid"] = "softmax"
    """How what the router says of an expert becomes its weight."""
    correction: str | None = None
    """What is added to weights when experts are chosen, and only then (DeepSeek-V3, arXiv:2412.19437)."""
    grouped: bool = False
    """Experts are in groups, if config.json says so, of which the best are chosen first."""
    heard: int = 1
    """How many of a group's experts, its best, speak for it."""
    shared: str = ""
    """What the names of the expert that every token goes to begin with."""
    shared_gate: str | None = None
    """What weighs that expert."""


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
    """The feed-forward block has gates; otherwise it is up, activation, down."""
    parallel: bool | str = False
    """Attention and feed-forward block read the same stream, instead of one after the other; through the
    same norm if there is no `before_mlp`."""
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


LLAMA = Family()
_GEMMA = Family(
    norm="shifted",
    keys={"hidden_act": "hidden_activation"},
    defaults={"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "head_dim": 256},
    scales_embeddings=True,
)
_SANDWICHED = Names(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_HEAD_NORMS = Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
_EXPERT_KEYS = {"num_experts": "num_local_experts"}
_DEEPSEEK = Family(
    keys={"num_experts": "n_routed_experts", "head_dim": "qk_rope_head_dim"},
    defaults={"rope_interleave": True},
    qkv_bias="attention_bias",
    latent=Latent(),
)
_DEEPSEEK_EXPERTS = Experts(grouped=True, shared="mlp.shared_experts.")
_GPT = Names(
    base="transformer.",
    embedding="wte",
    positions="wpe",
    layer="h.{}.",
    before_attention="ln_1",
    before_mlp="ln_2",
    qkv=("attn.c_attn",),
    out="attn.c_proj",
    up=("mlp.c_fc",),
    down="mlp.c_proj",
    final_norm="ln_f",
)
_GPT_KEYS = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
_OLMO2 = Family(
    names=replace(
        _SANDWICHED,
        before_attention=None,
        before_mlp=None,
        query_norm="self_attn.q_norm",
        key_norm="self_attn.k_norm",
    ),
    norm="wide",
    norms_whole=True,
)
_GPT2 = Family(
    names=_GPT,
    keys=_GPT_KEYS,
    defaults={"hidden_act": "gelu_new", "tie_word_embeddings": True, "norm_eps": 1e-5},
    norm="layer",
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    gated=False,
    rotary=False,
    transposed=True,
)
_MEGATRON = Names(
    base="transformer.",
    embedding="word_embeddings",
    layer="h.{}.",
    qkv=("self_attention.query_key_value",),
    out="self_attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    final_norm="ln_f",
)
_FALCON = Family(
    names=_MEGATRON,
    keys={
        "num_key_value_heads": "num_kv_heads",
        "norm_eps": "layer_norm_epsilon",
        "intermediate_size": "ffn_hidden_size",
        "hidden_act": "activation",
    },
    defaults={
        "hidden_act": "gelu",
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "multi_query": True,
        "parallel_attn": True,
        "num_ln_in_parallel_attn": 2,
    },
    norm="layer",
    qkv_bias="bias",
    out_bias="bias",
    mlp_bias="bias",
    gated=False,
    linear_biases="alibi",
    scales_biases=True,
    one_key_head="multi_query",
    by_head=True,
)
"""One block after the other, as in the smallest ones."""
_PARALLEL_FALCON = replace(_FALCON, names=replace(_MEGATRON, before_mlp=None), parallel=True)
_COHERE = Family(
    names=Names(before_mlp=None),
    keys={"norm_eps": "layer_norm_eps"},
    defaults={
        "norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "tie_word_embeddings": True,
        "rope_interleave": True,
    },
    expects={"use_qk_norm": False},
    norm="layer",
    mlp_bias=False,
    parallel=True,
)
_GLM = Family(
    names=Names(up=("mlp.gate_up_proj",)),
    defaults={"partial_rotary_factor": 0.5, "rope_interleave": True, "head_dim": 128},
    out_bias=False,
    mlp_bias=False,
)

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": Family(windowed=True),
    "Qwen2ForCausalLM": Family(
        defaults={"use_sliding_window": False},
        qkv_bias=True,
        out_bias=False,
        mlp_bias=False,
        windowed=True,
    ),
    "Qwen3ForCausalLM": Family(names=_HEAD_NORMS, defaults={"use_sliding_window": False}, windowed=True),
    "Phi3ForCausalLM": Family(
        names=Names(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        windowed=True,
    ),
    "Olmo2ForCausalLM": _OLMO2,
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": replace(
        _GEMMA,
        names=_SANDWICHED,
        defaults={**_GEMMA.defaults, "sliding_window_pattern": 2},
        windowed=True,
    ),
    "Gemma3ForCausalLM": replace(
        _GEMMA,
        names=replace(_SANDWICHED, query_norm="self_attn.q_norm", key_norm="self_attn.k_norm"),
        defaults={
            **_GEMMA.defaults,
            "sliding_window_pattern": 6,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
        },
        windowed=True,
    ),
    "SmolLM3ForCausalLM": Family(
        defaults={"use_sliding_window": False, "rope_theta": 2e6, "tie_word_embeddings": True},
        windowed=True,
    ),
    "GPT2LMHeadModel": _GPT2,
    "GPTNeoXForCausalLM": Family(
        names=Names(
            base="gpt_neox.",
            embedding="embed_in",
            qkv=("attention.query_key_value",),
            out="attention.dense",
            up=("mlp.dense_h_to_4h",),
            down="mlp.dense_4h_to_h",
            final_norm="final_layer_norm",
            head="embed_out",
        ),
        keys={
            "norm_eps": "layer_norm_eps",
            "rope_theta": "rotary_emb_base",
            "partial_rotary_factor": "rotary_pct",
            "use_parallel_residual": "use_parallel_residual",
        },
        defaults={
            "hidden_act": "gelu",
            "norm_eps": 1e-5,
            "attention_bias": True,
            "use_parallel_residual": True,
            "partial_rotary_factor": 0.25,
        },
        norm="layer",
        mlp_bias=True,
        gated=False,
        parallel="use_parallel_residual",
        by_head=True,
    ),
    "Starcoder2ForCausalLM": Family(
        names=Names(up=("mlp.c_fc",), down="mlp.c_proj"),
        keys={"norm_eps": "norm_epsilon"},
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "norm_eps": 1e-5,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
        norm="layer",
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        gated=False,
        windowed=True,
    ),
    "MixtralForCausalLM": Family(
        keys=_EXPERT_KEYS,
        defaults={"rope_theta": 1e6},
        windowed=True,
        experts=Experts(
            size="intermediate_size",
            router="block_sparse_moe.gate",
            expert="block_sparse_moe.experts.{}.",
            up=("w1", "w3"),
            down="w2",
            normalized=True,
        ),
    ),
    "Qwen3MoeForCausalLM": Family(
        names=_HEAD_NORMS,
        defaults={"use_sliding_window": False},
        windowed=True,
        keys=_EXPERT_KEYS,
        experts=Experts(),
    ),
    "DeepseekV2ForCausalLM": replace(_DEEPSEEK, experts=replace(_DEEPSEEK_EXPERTS, normalized=False)),
    "DeepseekV3ForCausalLM": replace(
        _DEEPSEEK,
        experts=replace(
            _DEEPSEEK_EXPERTS,
            scores="sigmoid",
            correction="mlp.gate.e_score_correction_bias",
            heard=2,
        ),
    ),
    "BloomForCausalLM": Family(
        names=replace(_MEGATRON, embedding_norm="word_embeddings_layernorm"),
        keys={
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "hidden_size": "n_embed",
            "max_position_embeddings": "seq_length",
            "norm_eps": "layer_norm_epsilon",
        },
        defaults={"hidden_act": "gelu_new", "norm_eps": 1e-5, "tie_word_embeddings": True},
        expects={"apply_residual_connection_post_layernorm": False},
        norm="layer",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        gated=False,
        linear_biases=True,
        by_head=True,
    ),
    "MptForCausalLM": Family(
        names=Names(
            base="transformer.",
            embedding="wte",
            layer="blocks.{}.",
            before_attention="norm_1",
            before_mlp="norm_2",
            qkv=("attn.Wqkv",),
            out="attn.out_proj",
            up=("ffn.up_proj",),
            down="ffn.down_proj",
            final_norm="norm_f",
        ),
        keys={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
            "norm_eps": "layer_norm_epsilon",
            "clip_qkv": "attn_config.clip_qkv",
            "alibi": "attn_config.alibi",
            "alibi_bias_max": "attn_config.alibi_bias_max",
            "attention_multiplier": "attn_config.softmax_scale",
            "attn_type": "attn_config.attn_type",
            "prefix_lm": "attn_config.prefix_lm",
            "qk_ln": "attn_config.qk_ln",
        },
        defaults={
            "hidden_act": "gelu",
            "norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "no_bias": True,
            "expansion_ratio": 4,
            "alibi": True,
            "attn_type": "multihead_attention",
        },
        expects={
            "no_bias": True,
            "expansion_ratio": 4,
            "alibi": True,
            "attn_type": "multihead_attention",
            "prefix_lm": False,
            "qk_ln": False,
            "logit_scale": None,
        },
        norm="layer",
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        gated=False,
        linear_biases=True,
    ),
    "FalconForCausalLM": replace(
        _PARALLEL_FALCON,
        names=replace(_MEGATRON, before_attention="ln_attn", before_mlp="ln_mlp"),
        expects={"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2},
        one_key_head=False,
        otherwise=replace(
            _PARALLEL_FALCON,
            expects={"new_decoder_architecture": True},
            one_key_head=False,
            otherwise=replace(_PARALLEL_FALCON, expects={"parallel_attn": True}, otherwise=_FALCON),
        ),
    ),
    "PhiForCausalLM": Family(
        names=Names(
            before_mlp=None,
            out="self_attn.dense",
            up=("mlp.fc1",),
            down="mlp.fc2",
            final_norm="final_layernorm",
        ),
        keys={"norm_eps": "layer_norm_eps"},
        defaults={"hidden_act": "gelu_new", "norm_eps": 1e-5, "partial_rotary_factor": 0.5},
        expects={"qk_layernorm": False},
        norm="layer",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        head_bias=True,
        gated=False,
        parallel=True,
    ),
    "StableLmForCausalLM": Family(
        keys={"norm_eps": "layer_norm_eps"},
        defaults={"norm_eps": 1e-5, "partial_rotary_factor": 0.25},
        expects={"qk_layernorm": False, "use_parallel_residual": False},
        norm="layer",
        qkv_bias="use_qkv_bias",
        out_bias=False,
        mlp_bias=False,
    ),
    "GraniteForCausalLM": LLAMA,
    "CohereForCausalLM": _COHERE,
    "Cohere2ForCausalLM": replace(
        _COHERE,
        defaults={**_COHERE.defaults, "sliding_window_pattern": 4},
        rotates_unwindowed=False,
        windowed=True,
    ),
    "OPTForCausalLM": Family(
        names=Names(
            base="model.decoder.",
            positions="embed_positions",
            before_attention="self_attn_layer_norm",
            before_mlp="final_layer_norm",
            out="self_attn.out_proj",
            up=("fc1",),
            down="fc2",
            final_norm="final_layer_norm",
        ),
        keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
        defaults={
            "hidden_act": "relu",
            "norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "do_layer_norm_before": True,
            "layer_norm_elementwise_affine": True,
            "enable_bias": True,
        },
        expects={
            "do_layer_norm_before": True,
            "layer_norm_elementwise_affine": True,
            "_remove_final_layer_norm": False,
        },
        norm="layer",
        qkv_bias="enable_bias",
        out_bias="enable_bias",
        mlp_bias="enable_bias",
        gated=False,
        rotary=False,
        position_offset=2,
    ),
    "GlmForCausalLM": _GLM,
    "Glm4ForCausalLM": replace(
        _GLM,
        names=replace(_GLM.names, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
    ),
    "OlmoForCausalLM": Family(defaults={"norm_eps": 1e-5}, norm="bare", mlp_bias=False),
    "Olmo3ForCausalLM": replace(
        _OLMO2,
        keys={"rope_local_base_freq": "rope_theta"},
        defaults={"rope_theta": 5e5, "rope_local_base_freq": 5e5, "sliding_window_pattern": 4},
        windowed=True,
    ),
    "Exaone4ForCausalLM": Family(
        names=_OLMO2.names,
        defaults={"sliding_window_pattern": 4},
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        rotates_unwindowed=False,
        windowed=True,
    ),
    "GPTJForCausalLM": Family(
        names=replace(
            _GPT,
            positions=None,
            before_mlp=None,
            qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
            out="attn.out_proj",
            up=("mlp.fc_in",),
            down="mlp.fc_out",
        ),
        keys=_GPT_KEYS,
        defaults={"hidden_act": "gelu_new", "norm_eps": 1e-5, "rotary_dim": 64, "rope_interleave": True},
        norm="layer",
        qkv_bias=False,
        out_bias=False,
        mlp_bias=True,
        head_bias=True,
        gated=False,
        parallel=True,
    ),
    "GPTBigCodeForCausalLM": replace(
        _GPT2,
        defaults={
            **_GPT2.defaults,
            "hidden_act": "gelu_pytorch_tanh",
            "multi_query": True,
            "scale_attn_weights": True,
        },
        expects={"scale_attn_weights": True},
        one_key_head="multi_query",
        by_head=True,
        transposed=False,
    ),
}
"""By what config.json calls its architecture."""


def family_of(architecture: str, values: Mapping[str, Any]) -> Family | None:
    """The entry for such a config.json, if there is one."""
    family = FAMILIES.get(architecture)
    return family.fitting(values) if family else None
