"""Gemma 2, 3 and 4 of GGUF files: keys of config.json that only these have."""

from typing import Any

from ops.model_directory.gguf.keys import FACTORS, Keys, head_size, windows


def _shared(keys: Keys, layers_of_27b: int, every: int) -> dict[str, Any]:
    """Gemma 2 and 3: the largest of each scales scores by another size than its heads'.

    `every`: each layer of this number has no window, if the file has no other.
    """
    largest = keys.number("block_count") == layers_of_27b
    size = keys.number("embedding_length") // keys.number("attention.head_count")
    return {
        "query_pre_attn_scalar": size if largest else head_size(keys),
        **windows(keys, every),
        "attn_logit_softcapping": keys.number("attn_logit_softcapping", 0) or None,
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0) or None,
    }


def gemma2(keys: Keys) -> dict[str, Any]:
    """Gemma 2."""
    return _shared(keys, 46, 2)


def gemma3(keys: Keys) -> dict[str, Any]:
    """Gemma 3, text."""
    local = keys.number("rope.freq_base_swa", 10000.0)
    return _shared(keys, 62, 6) | {
        "rope_local_base_freq": local,
        "rope_theta": keys.number("rope.freq_base", 1e6),
    }


def gemma4(keys: Keys) -> dict[str, Any]:
    """Gemma 4, text. Its layers have windows or not, and these two kinds have different sizes."""
    sliding = [bool(each) for each in keys.layers("attention.sliding_window_pattern")]
    heads, inner = keys.layers("attention.head_count_kv"), keys.layers("feed_forward_length")
    shared, row = (
        keys.number(key, 0) for key in ("attention.shared_kv_layers", "embedding_length_per_layer_input")
    )
    with_keys = range(len(sliding) - shared)
    share = keys.factors.get(FACTORS[0], (1.0,))
    size, size_of_windows = head_size(keys), keys.number("attention.key_length_swa")
    for key, whole in (("rope.dimension_count", size), ("rope.dimension_count_swa", size_of_windows)):
        if (given := keys.number(key, whole)) != whole:
            raise keys.wrong(key, f"{given} is not supported ({whole})")
    return {
        "layer_types": [f"{'sliding' if each else 'full'}_attention" for each in sliding],
        "sliding_window": keys.number("attention.sliding_window"),
        "head_dim": size_of_windows,
        "global_head_dim": size,
        "num_key_value_heads": heads[sliding.index(True)] if any(sliding) else heads[0],
        "num_global_key_value_heads": heads[sliding.index(False)] if not all(sliding) else None,
        "num_kv_shared_layers": shared,
        "attention_k_eq_v": any(
            not sliding[layer] and not keys.has(f"blk.{layer}.attn_v.weight") for layer in with_keys
        ),
        "use_double_wide_mlp": max(inner) > min(inner),
        "intermediate_size": min(inner),
        "hidden_size_per_layer_input": row,
        "vocab_size_per_layer_input": keys.file.tensors["token_embd.weight"].shape[0],
        "final_logit_softcapping": keys.number("final_logit_softcapping", 0) or None,
        "rope_theta": None,
        "rotary_dim": None,
        "rope_scaling": None,
        "rope_parameters": {
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": keys.number("rope.freq_base_swa", 10000.0),
            },
            "full_attention": {
                "rope_type": "proportional",
                # Other pairs of dimensions are stretched so much that they do not rotate.
                "partial_rotary_factor": sum(each == 1.0 for each in share) / len(share),
                "rope_theta": keys.number("rope.freq_base", 1e6),
            },
        },
        **_experts(keys),
    }


def _experts(keys: Keys) -> dict[str, Any]:
    """The mixture of Gemma 4, which is computed beside an MLP."""
    if not (count := keys.number("expert_count", 0)):
        return {}
    return {
        "enable_moe_block": True,
        "num_experts": count,
        "top_k_experts": keys.number("expert_used_count"),
        "moe_intermediate_size": keys.number("expert_feed_forward_length"),
    }
