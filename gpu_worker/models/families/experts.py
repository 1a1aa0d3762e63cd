"""Mixtures of experts."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Experts, Family, Latent, Names
from gpu_worker.models.families.llama import HEAD_NORMS, QWEN

_EXPERT_KEYS = {"num_experts": "num_local_experts"}
_DEEPSEEK = Family(
    keys={"num_experts": "n_routed_experts", "head_dim": "qk_rope_head_dim"},
    defaults={"rope_interleave": True, "q_lora_rank": 1536},
    latent=Latent(),
)
_DEEPSEEK_V3 = {
    **_DEEPSEEK.defaults,
    "n_group": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "topk_group": 4,
}
_DEEPSEEK_EXPERTS = Experts(grouped=True, shared="mlp.shared_experts.")
DEEPSEEK_V3_EXPERTS = replace(
    _DEEPSEEK_EXPERTS,
    scoring_func="sigmoid",
    score_correction_bias="mlp.gate.e_score_correction_bias",
    group_top_k=2,
)
_MIXTRAL_EXPERTS = Experts(
    intermediate_size="intermediate_size",
    router="block_sparse_moe.gate",
    expert="block_sparse_moe.experts.{}.",
    up=("w1", "w3"),
    down="w2",
    normalized=True,
)
_GLM = Family(
    reads=("routed_scaling_factor",),
    keys={"num_experts": "n_routed_experts"},
    defaults={
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_nextn_predict_layers": 1,
    },
    expects={"use_qk_norm": False},
    out_bias=False,
    mlp_bias=False,
    rotates_in_part=True,
    experts=DEEPSEEK_V3_EXPERTS,
)
_GPT_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}

FAMILIES: Mapping[str, Family] = {
    "MixtralForCausalLM": Family(
        keys=_EXPERT_KEYS,
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
        },
        windowed="everywhere",
        experts=_MIXTRAL_EXPERTS,
    ),
    "MiniMaxM2ForCausalLM": Family(
        reads=("rotary_dim",),
        names=HEAD_NORMS,
        keys=_EXPERT_KEYS,
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 196608,
            "rope_theta": 5e6,
        },
        expects={"shared_intermediate_size": 0},
        qkv_bias=False,
        out_bias=False,
        rotates_in_part=True,
        norms_all_heads=True,
        experts=replace(
            _MIXTRAL_EXPERTS,
            scoring_func="sigmoid",
            score_correction_bias="block_sparse_moe.e_score_correction_bias",
        ),
    ),
    "GptOssForCausalLM": Family(
        names=Names(sinks="self_attn.sinks"),
        norm="rms_float32",
        keys=_EXPERT_KEYS,
        defaults={
            "attention_bias": True,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "rope_parameters": _GPT_OSS_ROPE,
            "sliding_window": 128,
        },
        windowed=2,
        experts=Experts(
            intermediate_size="intermediate_size",
            router="mlp.router",
            normalized=True,
            clamped=True,
            stacked=True,
        ),
    ),
    "OlmoeForCausalLM": Family(
        reads=("clip_qkv",),
        names=HEAD_NORMS,
        keys=_EXPERT_KEYS,
        defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
        expects={"clip_qkv": None},
        norms_all_heads=True,
        experts=Experts(intermediate_size="intermediate_size"),
    ),
    "Glm4MoeLiteForCausalLM": replace(
        _DEEPSEEK,
        reads=("rope_interleave", "routed_scaling_factor"),
        defaults={
            "rope_interleave": True,
            "q_lora_rank": 768,
            "max_position_embeddings": 202752,
            "rms_norm_eps": 1e-5,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.8,
        },
        rotates_in_part=True,
        experts=DEEPSEEK_V3_EXPERTS,
    ),
    "YoutuForCausalLM": replace(
        _DEEPSEEK,
        reads=("rope_interleave",),
        defaults={**_DEEPSEEK.defaults, "max_position_embeddings": 131072, "tie_word_embeddings": True},
    ),
    "Glm4MoeForCausalLM": replace(
        _GLM, otherwise=replace(_GLM, names=HEAD_NORMS, expects={"use_qk_norm": True})
    ),
    "Dots1ForCausalLM": Family(
        reads=("routed_scaling_factor",),
        names=HEAD_NORMS,
        keys=_GLM.keys,
        defaults={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 62},
        mlp_bias=False,
        windowed="late",
        experts=DEEPSEEK_V3_EXPERTS,
    ),
    "Qwen2MoeForCausalLM": Family(
        defaults={
            **QWEN,
            "num_key_value_heads": 16,
            "max_window_layers": 28,
            "shared_expert_intermediate_size": 5632,
            "qkv_bias": True,
        },
        qkv_bias="qkv_bias",
        out_bias=False,
        mlp_bias=False,
        windowed="alternately",
        experts=Experts(shared="mlp.shared_expert.", shared_gate="mlp.shared_expert_gate"),
    ),
    "Qwen3MoeForCausalLM": Family(
        names=HEAD_NORMS,
        defaults={**QWEN, "num_key_value_heads": 4},
        windowed="everywhere",
        keys=_EXPERT_KEYS,
        experts=Experts(stacked=True),  # as in Qwen3-VL
    ),
    "DeepseekV2ForCausalLM": replace(
        _DEEPSEEK,
        reads=("routed_scaling_factor",),
        defaults={**_DEEPSEEK.defaults, "n_shared_experts": 2, "topk_method": "greedy"},
        experts=replace(_DEEPSEEK_EXPERTS, normalized=False),
    ),
    "DeepseekV3ForCausalLM": replace(
        _DEEPSEEK,
        reads=("rope_interleave", "routed_scaling_factor"),
        defaults={
            **_DEEPSEEK_V3,
            "max_position_embeddings": 4096,
            "first_k_dense_replace": 3,
            "num_nextn_predict_layers": 1,
        },
        experts=DEEPSEEK_V3_EXPERTS,
    ),
    "GlmMoeDsaForCausalLM": replace(
        _DEEPSEEK,
        reads=("routed_scaling_factor",),
        defaults={
            "rope_interleave": True,
            "max_position_embeddings": 202752,
            "rms_norm_eps": 1e-5,
            "first_k_dense_replace": 3,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "index_topk": 2048,
            "index_n_heads": 32,
            "index_head_dim": 128,
            "indexer_rope_interleave": True,
        },
        latent=Latent(indexer="self_attn.indexer."),
        experts=DEEPSEEK_V3_EXPERTS,
    ),
    "DeepseekV32ForCausalLM": replace(
        _DEEPSEEK,
        reads=("routed_scaling_factor",),
        defaults={
            **_DEEPSEEK_V3,
            "max_position_embeddings": 163840,
            "index_topk": 2048,
            "index_n_heads": 64,
            "index_head_dim": 128,
        },
        latent=Latent(indexer="self_attn.indexer."),
        experts=DEEPSEEK_V3_EXPERTS,
    ),
}
