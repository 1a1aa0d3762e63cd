"""Families with recurrent layers: gated delta nets, or short convolutions, beside layers with attention."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import (
    DeltaNet,
    Experts,
    Family,
    Names,
    Predictor,
    ShortConvolution,
    biases,
)
from gpu_worker.models.families.llama import HEAD_NORMS

_SHARED_EXPERT = Experts(
    normalized=True, stacked=True, shared="mlp.shared_expert.", shared_gate="mlp.shared_expert_gate"
)
_QWEN = Family(
    names=HEAD_NORMS,
    defaults={
        "num_key_value_heads": 2,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "shared_expert_intermediate_size": 512,
        "partial_rotary_factor": 0.25,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
    },
    norm="rms_one_plus",
    mlp_bias=False,
    rotates_in_part=True,
    gated_attention=True,
    recurrent=DeltaNet(),
    predictor=Predictor(
        prefix="mtp.",
        layer="layers.0.",
        embedding_norm="pre_fc_norm_embedding",
        hidden_norm="pre_fc_norm_hidden",
        joint="fc",
        final_norm="norm",
    ),
    left_out=("mtp.",),
)
_LFM = Family(
    reads=("norm_eps",),
    names=Names(
        before_attention="operator_norm",
        before_mlp="ffn_norm",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        out="self_attn.out_proj",
        up=("feed_forward.w1", "feed_forward.w3"),
        down="feed_forward.w2",
        final_norm="embedding_norm",
    ),
    keys={"tie_word_embeddings": "tie_embedding"},
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 128000,
        "full_attention_interval": 1,
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
    fixed={"hidden_act": "silu"},
    **biases(False),
    recurrent=ShortConvolution(),
)
_LFM_EXPERTS = Experts(
    router="feed_forward.gate",
    expert="feed_forward.experts.{}.",
    up=("w1", "w3"),
    down="w2",
    scoring_func="sigmoid",
    score_correction_bias="feed_forward.expert_bias",
)
_LFM_MOE = replace(
    _LFM,
    keys={**_LFM.keys, "first_k_dense_replace": "num_dense_layers"},
    reads=("norm_eps", "routed_scaling_factor"),
    defaults={
        **_LFM.defaults,
        "first_k_dense_replace": 2,
        "norm_topk_prob": True,
        "use_expert_bias": True,
    },
    expects={"use_expert_bias": True},
    experts=_LFM_EXPERTS,
)

FAMILIES: Mapping[str, Family] = {
    "Qwen3NextForCausalLM": replace(
        _QWEN,
        defaults={**_QWEN.defaults, "norm_topk_prob": True},
        experts=replace(_SHARED_EXPERT, normalized="norm_topk_prob"),
    ),
    "Qwen3_5ForCausalLM": replace(_QWEN, defaults={**_QWEN.defaults, "num_key_value_heads": 4}),
    "Qwen3_5MoeForCausalLM": replace(
        _QWEN, defaults={**_QWEN.defaults, "intermediate_size": 512}, experts=_SHARED_EXPERT
    ),
    "Lfm2ForCausalLM": replace(
        _LFM,
        keys={**_LFM.keys, "intermediate_size": "block_ff_dim"},
        defaults={**_LFM.defaults, "block_auto_adjust_ff_dim": True},
    ),
    "Lfm2MoeForCausalLM": replace(
        _LFM_MOE,
        otherwise=replace(
            _LFM_MOE,
            expects={"use_expert_bias": False},
            experts=replace(_LFM_EXPERTS, score_correction_bias=None),
        ),
    ),
}
