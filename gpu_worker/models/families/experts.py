"""Mixtures of experts."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Experts, Family, Latent, Names
from gpu_worker.models.families.llama import HEAD_NORMS

_EXPERT_KEYS = {"num_experts": "num_local_experts"}
_DEEPSEEK = Family(
    keys={"num_experts": "n_routed_experts", "head_dim": "qk_rope_head_dim"},
    defaults={"rope_interleave": True},
    latent=Latent(),
)
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
    keys={"num_experts": "n_routed_experts"},
    defaults={
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-5,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
    },
    expects={"use_qk_norm": False},
    out_bias=False,
    mlp_bias=False,
    experts=DEEPSEEK_V3_EXPERTS,
)

FAMILIES: Mapping[str, Family] = {
    "MixtralForCausalLM": Family(
        keys=_EXPERT_KEYS,
        defaults={"rope_theta": 1e6},
        windowed=True,
        experts=_MIXTRAL_EXPERTS,
    ),
    "MiniMaxM2ForCausalLM": Family(
        names=HEAD_NORMS,
        keys=_EXPERT_KEYS,
        defaults={"head_dim": 128, "rope_theta": 5e6},
        expects={"shared_intermediate_size": 0},
        qkv_bias=False,
        out_bias=False,
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
            "head_dim": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "sliding_window_pattern": 2,
        },
        windowed=True,
        experts=Experts(
            intermediate_size="intermediate_size",
            router="mlp.router",
            normalized=True,
            clamped=True,
            stacked=True,
        ),
    ),
    "OlmoeForCausalLM": Family(
        names=HEAD_NORMS,
        keys=_EXPERT_KEYS,
        defaults={"rms_norm_eps": 1e-5},
        expects={"clip_qkv": None},
        norms_all_heads=True,
        experts=Experts(intermediate_size="intermediate_size"),
    ),
    "Glm4MoeLiteForCausalLM": replace(
        _DEEPSEEK,
        defaults={
            "rope_interleave": True,
            "rms_norm_eps": 1e-5,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.8,
        },
        experts=DEEPSEEK_V3_EXPERTS,
    ),
    "YoutuForCausalLM": replace(_DEEPSEEK, defaults={"rope_interleave": True, "tie_word_embeddings": True}),
    "Glm4MoeForCausalLM": replace(
        _GLM, otherwise=replace(_GLM, names=HEAD_NORMS, expects={"use_qk_norm": True})
    ),
    "Dots1ForCausalLM": Family(
        names=HEAD_NORMS,
        keys=_GLM.keys,
        mlp_bias=False,
        windowed=True,
        experts=DEEPSEEK_V3_EXPERTS,
    ),
    "Qwen2MoeForCausalLM": Family(
        defaults={"use_sliding_window": False},
        qkv_bias=True,
        out_bias=False,
        mlp_bias=False,
        windowed=True,
        experts=Experts(shared="mlp.shared_expert.", shared_gate="mlp.shared_expert_gate"),
    ),
    "Qwen3MoeForCausalLM": Family(
        names=HEAD_NORMS,
        defaults={"use_sliding_window": False},
        windowed=True,
        keys=_EXPERT_KEYS,
        experts=Experts(stacked=True),  # as in Qwen3-VL
    ),
    "DeepseekV2ForCausalLM": replace(_DEEPSEEK, experts=replace(_DEEPSEEK_EXPERTS, normalized=False)),
    "DeepseekV3ForCausalLM": replace(
        _DEEPSEEK,
        experts=DEEPSEEK_V3_EXPERTS,
    ),
    "GlmMoeDsaForCausalLM": replace(
        _DEEPSEEK,
        defaults={
            "rope_interleave": True,
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
        defaults={
            **_DEEPSEEK.defaults,
            "index_topk": 2048,
            "index_n_heads": 64,
            "index_head_dim": 128,
        },
        latent=Latent(indexer="self_attn.indexer."),
        experts=DEEPSEEK_V3_EXPERTS,
    ),
}
