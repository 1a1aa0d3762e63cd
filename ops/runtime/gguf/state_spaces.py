"""Models with state spaces of GGUF files: keys of config.json that only these have."""

from typing import Any

from ops.runtime.gguf.keys import Keys, feed_forward, head_size
from ops.runtime.gguf.mixtures import experts


def granite_hybrid(keys: Keys) -> dict[str, Any]:
    """Granite 4 H. Layers without key heads are state spaces."""
    if keys.flag("rope.scaling.finetuned", True):
        what = "rotary embeddings are not supported beside state spaces"
        raise keys.file.wrong(f"{keys.architecture}.rope.scaling.finetuned", what)
    key_heads = keys.layers("attention.head_count_kv")
    kinds = ["full_attention" if heads else "linear_attention" for heads in key_heads]
    shared = keys.number("expert_shared_feed_forward_length", 0)
    dense = not keys.number("expert_count", 0)
    sizes = {"num_experts": 0} if dense else experts(keys, True)
    return {
        **_state_space(keys, kinds),
        **sizes,
        "num_key_value_heads": max(key_heads),
        "intermediate_size": shared if dense and shared else feed_forward(keys),
        "shared_expert_intermediate_size": shared,
        "gate_and_up_apart": True,
        "attention_bias": keys.has(f"blk.{_first(kinds, 'full_attention')}.attn_q.bias"),
        "attention_multiplier": keys.number("attention.scale", 0) or head_size(keys) ** -0.5,
        "embedding_multiplier": keys.number("embedding_scale", 0) or 1.0,
        "residual_multiplier": keys.number("residual_scale", 0) or 1.0,
        "logits_scaling": keys.number("logit_scale", 0) or 1.0,
    }


def _state_space(keys: Keys, kinds: list[str]) -> dict[str, Any]:
    """State spaces as Mamba-2 has them. `kinds`: of all layers."""
    heads = keys.number("ssm.time_step_rank")
    return {
        "layer_types": kinds,
        "mamba_d_conv": keys.number("ssm.conv_kernel"),
        "mamba_d_state": keys.number("ssm.state_size"),
        "mamba_d_head": keys.number("ssm.inner_size") // max(1, heads),
        "mamba_n_heads": heads,
        "mamba_n_groups": keys.number("ssm.group_count"),
        "mamba_conv_bias": keys.has(f"blk.{_first(kinds, 'linear_attention')}.ssm_conv1d.bias"),
    }


def _first(kinds: list[str], kind: str) -> int:
    """The first layer of a kind; 0 if there is none."""
    return kinds.index(kind) if kind in kinds else 0
