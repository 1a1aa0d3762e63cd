"""Mixtures of experts."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Experts, Family, Latent
from gpu_worker.models.families.llama import HEAD_NORMS

_EXPERT_KEYS = {"num_experts": "num_local_experts"}
_DEEPSEEK = Family(
    keys={"num_experts": "n_routed_experts", "head_dim": "qk_rope_head_dim"},
    defaults={"rope_interleave": True},
    latent=Latent(),
)
_DEEPSEEK_EXPERTS = Experts(grouped=True, shared="mlp.shared_experts.")

FAMILIES: Mapping[str, Family] = {
    "MixtralForCausalLM": Family(
        keys=_EXPERT_KEYS,
        defaults={"rope_theta": 1e6},
        windowed=True,
        experts=Experts(
            intermediate_size="intermediate_size",
            router="block_sparse_moe.gate",
            expert="block_sparse_moe.experts.{}.",
            up=("w1", "w3"),
            down="w2",
            normalized=True,
        ),
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
        experts=Experts(),
    ),
    "DeepseekV2ForCausalLM": replace(_DEEPSEEK, experts=replace(_DEEPSEEK_EXPERTS, normalized=False)),
    "DeepseekV3ForCausalLM": replace(
        _DEEPSEEK,
        experts=replace(
            _DEEPSEEK_EXPERTS,
            scoring_func="sigmoid",
            score_correction_bias="mlp.gate.e_score_correction_bias",
            group_top_k=2,
        ),
    ),
}
