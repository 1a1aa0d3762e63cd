"""Mixtures of experts of GGUF files: keys of config.json that only these have.

Where a file has no value, llama.cpp's own holds.
"""

from typing import Any

from ops.model_directory.gguf.keys import Keys, feed_forward, rope_scaling, windows

SOFTMAX, SIGMOID = 1, 2
"""Numbers of the functions from router logits to scores."""


def experts(
    keys: Keys, normalized: bool, scores: int = SOFTMAX, *, fixed: bool = False, grouped: bool = False
) -> dict[str, Any]:
    """A mixture of experts. `normalized`, `scores`: what holds where the file has no value.

    `fixed`: the architecture has no other `normalized`. `grouped`: experts may have groups.
    """
    if (given := keys.number("expert_gating_func", scores)) != scores:
        raise keys.wrong("expert_gating_func", f"{given} is not supported ({scores})")
    if fixed and keys.flag("expert_weights_norm", normalized) != normalized:
        raise keys.wrong("expert_weights_norm", f"{str(not normalized).lower()} is not supported")
    if not grouped and (groups := keys.number("expert_group_count", 1)) > 1:
        raise keys.wrong("expert_group_count", f"{groups} is not supported (1)")
    return {
        "num_experts": keys.number("expert_count"),
        "num_experts_per_tok": keys.number("expert_used_count"),
        "moe_intermediate_size": keys.number("expert_feed_forward_length", feed_forward(keys)),
        "n_shared_experts": keys.number("expert_shared_count", 0),
        "first_k_dense_replace": keys.number("leading_dense_block_count", 0),
        "n_group": keys.number("expert_group_count", 1),
        "topk_group": keys.number("expert_group_used_count", 1),
        "norm_topk_prob": keys.flag("expert_weights_norm", normalized),
        "routed_scaling_factor": keys.number("expert_weights_scale", 0) or 1.0,
    }


def qwen2moe(keys: Keys) -> dict[str, Any]:
    shared = keys.number("expert_shared_feed_forward_length", feed_forward(keys))
    return {**experts(keys, False), "shared_expert_intermediate_size": shared}


def qwen3moe(keys: Keys) -> dict[str, Any]:
    return experts(keys, True)


def olmoe(keys: Keys) -> dict[str, Any]:
    return {**experts(keys, False), "clip_qkv": keys.number("attention.clamp_kqv", 0) or None}


def glm4moe(keys: Keys) -> dict[str, Any]:
    return {
        **experts(keys, False, SIGMOID, grouped=True),
        "num_nextn_predict_layers": keys.number("nextn_predict_layers", 0),
        "attention_bias": keys.has("blk.0.attn_q.bias"),
        "use_qk_norm": keys.has("blk.0.attn_q_norm.weight"),
    }


def minimax_m2(keys: Keys) -> dict[str, Any]:
    found = experts(keys, True, SIGMOID, fixed=True)
    return {**found, "intermediate_size": found["moe_intermediate_size"]}


def gpt_oss(keys: Keys) -> dict[str, Any]:
    """gpt-oss, whose YaRN does not round the dimensions between which it fades."""
    found, scaling = experts(keys, True, fixed=True), rope_scaling(keys)
    return {
        **found,
        "intermediate_size": found["moe_intermediate_size"],
        **windows(keys, 2),
        "rope_scaling": scaling and {**scaling, "truncate": False},
    }


def deepseek2(keys: Keys) -> dict[str, Any]:
    """DeepSeek V2 and V3, and models like them, whose attention is latent."""
    third = keys.number("expert_gating_func", SOFTMAX) == SIGMOID
    found = experts(keys, False, SIGMOID if third else SOFTMAX, fixed=not third, grouped=True)
    return {
        **found,
        **latent_attention(keys),
        "architectures": ["DeepseekV3ForCausalLM" if third else "DeepseekV2ForCausalLM"],
        "num_nextn_predict_layers": keys.number("nextn_predict_layers", 0),
        "topk_method": None if third else "group_limited_greedy" if found["n_group"] > 1 else "greedy",
    }


def latent_attention(keys: Keys) -> dict[str, Any]:
    """Keys of latent attention, whose rotary embedding may scale scores."""
    size = keys.number("attention.key_length_mla", keys.number("attention.key_length"))
    rotated = keys.number("rope.dimension_count")
    scaling = rope_scaling(keys)
    if scaling and (multiplier := keys.number("rope.scaling.yarn_log_multiplier", 0)):
        # The file has a tenth of mscale_all_dim, which mscale equals in all models that have both.
        scaling |= dict.fromkeys(("mscale", "mscale_all_dim"), 10 * multiplier)
    return {
        "num_key_value_heads": keys.number("attention.head_count"),
        "q_lora_rank": keys.number("attention.q_lora_rank", 0),
        "kv_lora_rank": keys.number("attention.kv_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": size - rotated,
        "v_head_dim": keys.number("attention.value_length_mla", keys.number("attention.value_length")),
        "head_dim": rotated,
        "rope_scaling": scaling,
    }
