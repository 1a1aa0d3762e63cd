"""Names of tensors of GGUF files, and those that checkpoints of safetensors give them."""

import re
from collections.abc import Mapping

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "token_embd_norm": "model.embedding_norm",
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_ALONE = ("nemotron_h", "nemotron_h_moe", "mamba2")
"""Architectures whose layers are one thing each."""
_BACKBONE = {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f"}
_OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(_ALONE, _BACKBONE),
    "falcon-h1": {"output_norm": "model.final_layernorm"},
}
"""Names of an architecture that differ from `_NAMES`."""
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"nextn.{one}": one for one in ("eh_proj", "enorm", "hnorm", "embed_tokens")},
    **{f"nextn.shared_head_{one}": f"shared_head.{one}" for one in ("head", "norm")},
}
"""`{}`: the number of an expert."""
_NORMS_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Names of Gemma 2, 3 and 4, whose norms stand before and after attention and MLP."""
_SHARED_EXPERT = {f"ffn_{one}_shexp": f"mlp.shared_expert.{one}_proj" for one in ("gate", "up", "down")}
_SHARED_EXPERTS = {f"ffn_{one}_shexp": f"mlp.shared_experts.{one}_proj" for one in ("gate", "up", "down")}
_BLOCK_SPARSE = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
}
"""Names of Mixtral and MiniMax M2."""
_DELTA_NETS = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
    **_SHARED_EXPERT,
}
"""Names of Qwen 3.5 and Qwen3-Next."""
_SHORT_CONVOLUTIONS = {
    "attn_norm": "operator_norm",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "attn_output": "self_attn.out_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "ffn_gate_inp": "feed_forward.gate",
    "ffn_gate_exps": "feed_forward.experts.{}.w1",
    "ffn_up_exps": "feed_forward.experts.{}.w3",
    "ffn_down_exps": "feed_forward.experts.{}.w2",
}
"""Names of LFM2."""
_STATE_SPACES = {"ssm_in": "in_proj", "ssm_conv1d": "conv1d", "ssm_norm": "norm", "ssm_out": "out_proj"}
_STATE_SPACES_WHOLE = {"ssm_a": "A_log", "ssm_d": "D", "ssm_dt.bias": "dt_bias"}
_MAMBA, _MAMBA_WHOLE = (
    {own: f"mamba.{name}" for own, name in names.items()} for names in (_STATE_SPACES, _STATE_SPACES_WHOLE)
)
"""Names of state spaces in most families."""
_MIXERS = {
    "attn_norm": "norm",
    **{f"attn_{one}": f"mixer.{one}_proj" for one in ("q", "k", "v")},
    "attn_output": "mixer.o_proj",
    **{f"ffn_{one}": f"mixer.{one}_proj" for one in ("up", "down")},
    **{f"ffn_{one}_exps": f"mixer.experts.{{}}.{one}_proj" for one in ("up", "down")},
    **{f"ffn_{one}_shexp": f"mixer.shared_experts.{one}_proj" for one in ("up", "down")},
    "ffn_gate_inp": "mixer.gate",
    "ffn_latent_down": "mixer.fc1_latent_proj",
    "ffn_latent_up": "mixer.fc2_latent_proj",
    **{own: f"mixer.{name}" for own, name in _STATE_SPACES.items()},
}
_MIXERS_WHOLE = {
    **{own: f"mixer.{name}" for own, name in _STATE_SPACES_WHOLE.items()},
    "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
}
"""Names of `_ALONE`."""
_LATENT = {
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.kv_b_proj",
    "attn_v_b": "self_attn.kv_b_proj",
    **_SHARED_EXPERTS,
}
"""Names of latent attention, and of the shared experts beside it."""
_KIMI_DELTA = {
    **{f"ssm_{one}_{part}": f"self_attn.{one}_{part}_proj" for one in ("f", "g") for part in ("a", "b")},
    **{f"ssm_conv1d_{one}": f"self_attn.{one}_conv1d" for one in ("q", "k", "v")},
    "ssm_beta": "self_attn.b_proj",
    "ssm_norm": "self_attn.o_norm",
}
"""Names of Kimi Delta Attention."""
_OTHER_IN_LAYER: Mapping[str, Mapping[str, str]] = {
    "llama": _BLOCK_SPARSE,
    "minimax-m2": _BLOCK_SPARSE,
    "gemma2": _NORMS_AROUND,
    "gemma3": _NORMS_AROUND,
    "gemma4": {
        **_NORMS_AROUND,
        "inp_gate": "per_layer_input_gate",
        "proj": "per_layer_projection",
        "post_norm": "post_per_layer_input_norm",
        "ffn_gate_inp": "router.proj",
        "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
        "post_ffw_norm_1": "post_feedforward_layernorm_1",
        "post_ffw_norm_2": "post_feedforward_layernorm_2",
        **{f"ffn_{one}_exps": f"experts.{{}}.{one}_proj" for one in ("gate_up", "gate", "up", "down")},
    },
    "phi3": {"ffn_up": "mlp.gate_up_proj"},
    "seed_oss": {"post_attention_norm": "post_attention_layernorm"},
    "qwen2moe": _SHARED_EXPERT,
    "glm4moe": {"post_attention_norm": "post_attention_layernorm", **_SHARED_EXPERTS},
    "gpt-oss": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_gate_inp": "mlp.router",
    },
    **dict.fromkeys(("qwen35", "qwen35moe", "qwen3next"), _DELTA_NETS),
    "lfm2": _SHORT_CONVOLUTIONS,
    "lfm2moe": _SHORT_CONVOLUTIONS,
    "granitehybrid": {**_MAMBA, **_SHARED_EXPERT},
    **dict.fromkeys(_ALONE, _MIXERS),
    "falcon-h1": {
        **_MAMBA,
        "ffn_norm": "pre_ff_layernorm",
        **{f"ffn_{one}": f"feed_forward.{one}_proj" for one in ("gate", "up", "down")},
    },
    "deepseek2": _LATENT,
    "kimi-linear": {**_LATENT, **_KIMI_DELTA},
}
"""Names of an architecture that differ from `_IN_LAYER`. Two tensors with one name are parts of one."""
_WHOLE = {
    "attn_sinks.weight": "self_attn.sinks",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
}
"""Names in a layer that do not end with `weight` or `bias` elsewhere."""
_OTHER_WHOLE: Mapping[str, Mapping[str, str]] = {
    "minimax-m2": {"exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias"},
    "lfm2moe": {"exp_probs_b.bias": "feed_forward.expert_bias"},
    "kimi-linear": {"ssm_a": "self_attn.A_log", "ssm_dt.bias": "self_attn.dt_bias"},
    "granitehybrid": _MAMBA_WHOLE,
    "falcon-h1": {**_MAMBA_WHOLE, "ffn_norm": "pre_ff_layernorm.weight"},
    **dict.fromkeys(_ALONE, _MIXERS_WHOLE),
}
"""Names of an architecture that differ from `_WHOLE`."""
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")


def hugging_face_name(architecture: str, name: str) -> str:
    """The name of a tensor elsewhere; its own if it is not known, which then is in no configuration."""
    outside = {**_NAMES, **_OTHER_NAMES.get(architecture, {})}
    if found := _LAYER.fullmatch(name):
        base = outside["token_embd"].partition(".")[0]
        names = {**_IN_LAYER, **_OTHER_IN_LAYER.get(architecture, {})}
        whole = {**_WHOLE, **_OTHER_WHOLE.get(architecture, {})}
        stem, _, end = found[2].rpartition(".")
        return f"{base}.layers.{found[1]}." + whole.get(found[2], f"{names.get(stem, stem)}.{end}")
    stem, _, end = name.rpartition(".")
    return f"{outside[stem]}.{end}" if stem in outside else name
