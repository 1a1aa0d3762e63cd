"""Models with recurrent layers of GGUF files: keys of config.json that only these have."""

from typing import Any

from ops.model_directory.gguf.keys import Keys
from ops.model_directory.gguf.mixtures import SIGMOID, experts, latent_attention


def qwen35(keys: Keys) -> dict[str, Any]:
    """Qwen 3.5, whose value heads of a key head llama.cpp has as far apart as there are key heads."""
    heads, count = keys.number("ssm.time_step_rank"), keys.number("block_count")
    every = max(1, keys.number("full_attention_interval", 4))
    usual = [(number + 1) % every > 0 for number in range(count)]
    recurrent = keys.layers("attention.recurrent_layers", usual)[
        : count - keys.number("nextn_predict_layers", 0)
    ]
    return {
        "layer_types": ["linear_attention" if each else "full_attention" for each in recurrent],
        "linear_conv_kernel_dim": keys.number("ssm.conv_kernel"),
        "linear_num_key_heads": keys.number("ssm.group_count"),
        "linear_key_head_dim": keys.number("ssm.state_size"),
        "linear_num_value_heads": heads,
        "linear_value_head_dim": keys.number("ssm.inner_size") // max(1, heads),
        "value_heads_tiled": keys.architecture != "qwen3next",
    }


def qwen35moe(keys: Keys) -> dict[str, Any]:
    """Qwen 3.5 with experts, and Qwen3-Next."""
    shared = keys.number("expert_shared_feed_forward_length", keys.number("expert_feed_forward_length"))
    return {**qwen35(keys), **experts(keys, True, fixed=True), "shared_expert_intermediate_size": shared}


def lfm2(keys: Keys) -> dict[str, Any]:
    """LFM2. Layers without key heads are convolutions."""
    key_heads = keys.layers("attention.head_count_kv")
    kinds = ["full_attention" if heads else "conv" for heads in key_heads]
    return {
        "num_key_value_heads": max(key_heads),
        "layer_types": kinds,
        "conv_L_cache": keys.number("shortconv.l_cache"),
        "conv_bias": keys.has(f"blk.{kinds.index('conv') if 'conv' in kinds else 0}.shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
    }


def lfm2moe(keys: Keys) -> dict[str, Any]:
    """LFM2 with experts."""
    found = {**lfm2(keys), **experts(keys, True, SIGMOID)}
    return found | {"num_dense_layers": found["first_k_dense_replace"]}


def kimi_linear(keys: Keys) -> dict[str, Any]:
    """Kimi Linear. Layers without key heads are delta nets, with as many heads as attention has."""
    heads = keys.number("attention.head_count")
    key_heads = keys.layers("attention.head_count_kv")
    return {
        **latent_attention(keys),
        **experts(keys, True, SIGMOID, grouped=True),
        "architectures": ["KimiLinearForCausalLM"],
        "layer_types": ["full_attention" if each else "linear_attention" for each in key_heads],
        "linear_num_heads": heads,
        "linear_head_dim": keys.number("kda.head_dim"),
        "linear_conv_kernel_dim": keys.number("ssm.conv_kernel"),
    }
