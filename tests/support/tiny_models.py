"""A tiny random model of any causal language model of the installed transformers.

Sizes are found by the names of their keys: a configuration gets those of `SIZES` that it has.
"""

from collections.abc import Mapping
from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 97),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "n_embed"), 32),
    **dict.fromkeys(
        ("intermediate_size", "intermediate_size_mlp", "ffn_hidden_size", "ffn_dim", "n_inner"), 48
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_shared_layers", "altup_num_inputs"), 2),
    **dict.fromkeys(("head_dim", "hidden_size_per_layer_input"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), 128),
    **dict.fromkeys(("sliding_window", "sliding_window_size"), 9),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"), 2),
    **dict.fromkeys(
        ("moe_intermediate_size", "expert_ffn_hidden_size", "shared_expert_intermediate_size"), 16
    ),
    **dict.fromkeys(
        ("kv_lora_rank", "q_lora_rank", "global_head_dim", "attention_chunk_size", "floor_scale"), 16
    ),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "n_shared_experts"), 1),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 4),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size"), 8),
    **{"mamba_d_ssm": 64, "mamba_d_head": 16, "mamba_head_dim": 16, "mamba_n_groups": 2, "n_groups": 2},
    **{"moe_shared_expert_intermediate_size": 16, "shared_intermediate_size": 16},
    **dict.fromkeys(("num_global_key_value_heads", "moe_layer_start_index"), 1),
    **{
        "laurel_rank": 4,
        "index_topk": 128,
        "index_n_heads": 2,
        "index_head_dim": 8,
        "num_nextn_predict_layers": 0,
    },
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.2, "dropout": 0.0},
}

ROUND: dict[str, Any] = {
    key: -(-size // 32) * 32 if key.endswith(("_size", "_dim", "_rank", "_input", "experts")) else size
    for key, size in SIZES.items()
} | dict.fromkeys(("hidden_size", "d_model", "n_embd", "n_embed"), 128)
"""Multiples of 32, as those of models that people have are. Their numbers fill vectors."""


def tiny_model(architecture: str, seed: int = 0, sizes: Mapping[str, Any] = SIZES) -> Any:
    """The model, in float32, with its own eager attention; no weight is zero or one.

    Raises whatever transformers raises if a configuration of these sizes contradicts itself.
    """
    torch.manual_seed(seed)
    kind = getattr(transformers, architecture)
    usual = kind.config_class()
    known = {*usual.to_dict(), *getattr(usual, "attribute_map", {})}
    usual_sizes, sizes = sizes, {key: size for key, size in sizes.items() if key in known}
    if "kv_lora_rank" in sizes:  # the size of a head follows from its parts
        part = usual_sizes["qk_rope_head_dim"]
        sizes |= {"head_dim": part, "num_key_value_heads": 4, "qk_head_dim": 2 * part}
        sizes = {key: size for key, size in sizes.items() if key in known}
    for key in ("layer_types", "mlp_layer_types"):
        own = getattr(type(usual), getattr(usual, "attribute_map", {}).get(key, key), None)
        derived = isinstance(own, property) and own.fset is None
        if key in known and not derived and (types := getattr(usual, key, None)):
            every = list(dict.fromkeys(types))
            sizes[key] = [every[layer % len(every)] for layer in range(SIZES["num_hidden_layers"])]
    config = kind.config_class(**sizes)
    config._attn_implementation = "eager"
    model = kind(config).eval().float()
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0 if name.endswith("bias") else 0.7, std=0.2)
        elif not parameter.isfinite().all() or parameter.std() < 1e-3 or "experts" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.2)
    return model
