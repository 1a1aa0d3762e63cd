"""Models with state spaces of GGUF files: keys of config.json that only these have."""

from typing import Any

from ops.model_directory.gguf.keys import Keys, feed_forward, head_size, norm_epsilon
from ops.model_directory.gguf.mixtures import SIGMOID, experts

_ANY_LENGTH = 1 << 20
"""The context length that llama.cpp's converter writes, whatever the model's own is."""


def granite_hybrid(keys: Keys) -> dict[str, Any]:
    """Granite 4 H. Layers without key heads are state spaces."""
    if keys.flag("rope.scaling.finetuned", True):
        what = "rotary embeddings are not supported beside state spaces"
        raise keys.wrong("rope.scaling.finetuned", what)
    key_heads = keys.layers("attention.head_count_kv")
    kinds = ["full_attention" if heads else "linear_attention" for heads in key_heads]
    shared = keys.number("expert_shared_feed_forward_length", 0)
    dense = not keys.number("expert_count", 0)
    sizes = {"num_experts": 0} if dense else experts(keys, True, fixed=True)
    return {
        **_state_space(keys, kinds),
        **sizes,
        "max_position_embeddings": _length(keys, 1 << 17),
        "num_key_value_heads": keys.same("attention.head_count_kv") or None,
        "intermediate_size": shared if dense and shared else feed_forward(keys),
        "shared_expert_intermediate_size": shared,
        "gate_and_up_apart": True,
        "attention_bias": keys.has(f"blk.{_first(kinds, 'full_attention')}.attn_q.bias"),
        **granite_scales(keys),
    }


def granite_scales(keys: Keys) -> dict[str, float]:
    """Factors of Granite, also of its models without state spaces. 0 is as none."""
    return {
        "attention_multiplier": keys.number("attention.scale", 0) or head_size(keys) ** -0.5,
        "embedding_multiplier": keys.number("embedding_scale", 0) or 1.0,
        "residual_multiplier": keys.number("residual_scale", 0) or 1.0,
        "logits_scaling": keys.number("logit_scale", 0) or 1.0,
    }


def nemotron_h(keys: Keys) -> dict[str, Any]:
    """Nemotron H and Nemotron 3. Layers with neither key heads nor an MLP or experts are state spaces."""
    count = keys.number("block_count") - keys.number("nextn_predict_layers", 0)
    key_heads = keys.layers("attention.head_count_kv")[:count]
    with_experts = keys.number("expert_count", 0) > 0
    other = "moe" if with_experts else "mlp"
    kinds = [
        "full_attention" if heads else other if size else "linear_attention"
        for heads, size in zip(key_heads, keys.layers("feed_forward_length"), strict=False)
    ]
    return {
        **_state_space(keys, kinds),
        **(_experts_of_nemotron(keys) if with_experts else {}),
        "max_position_embeddings": _length(keys, 1 << 18),
        "num_key_value_heads": keys.same("attention.head_count_kv") or None,
        "intermediate_size": keys.same("feed_forward_length") or None,
        "norm_eps": norm_epsilon(keys),
    }


def _experts_of_nemotron(keys: Keys) -> dict[str, Any]:
    return {
        **experts(keys, False, SIGMOID, grouped=True),
        "num_experts_per_tok": keys.same("expert_used_count"),
        "moe_intermediate_size": keys.same("expert_feed_forward_length"),
        "shared_expert_intermediate_size": keys.number("expert_shared_feed_forward_length", 0),
        "moe_latent_size": keys.number("moe_latent_size", 0),
    }


def falcon_h1(keys: Keys) -> dict[str, Any]:
    """Falcon H1, whose multipliers are in the weights of a file. Results are gated before they are
    normalized."""
    return {
        **_state_space(keys, ["linear_attention"] * keys.number("block_count")),
        "mamba_rms_norm": keys.has("blk.0.ssm_norm.weight"),
        "mamba_norm_before_gate": False,
    }


def mamba2(keys: Keys) -> dict[str, Any]:
    """Mamba-2, which has no attention."""
    found = _state_space(keys, ["linear_attention"] * keys.number("block_count"))
    return {
        **found,
        "max_position_embeddings": _length(keys, None),
        "num_attention_heads": found["mamba_n_heads"],
        "num_key_value_heads": None,
        "head_dim": None,
        "rotary_dim": None,
        "norm_eps": norm_epsilon(keys),
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


def _length(keys: Keys, usual: int | None) -> int | None:
    """The context length of the file, or `usual` if the file has none of its own."""
    found: int = keys.number("context_length")
    return usual if found == _ANY_LENGTH else found


def _first(kinds: list[str], kind: str) -> int:
    """The first layer of a kind; 0 if there is none."""
    return kinds.index(kind) if kind in kinds else 0
