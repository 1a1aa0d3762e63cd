"""Families with linear biases (ALiBi). Of Falcon only the smallest models have them."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Family, Names, biases

_MEGATRON = Names(
    base="transformer.",
    embedding="word_embeddings",
    layer="h.{}.",
    qkv=("self_attention.query_key_value",),
    out="self_attention.dense",
    up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    final_norm="ln_f",
)
_FALCON = Family(
    names=_MEGATRON,
    keys={
        "num_key_value_heads": "num_kv_heads",
        "norm_eps": "layer_norm_epsilon",
        "intermediate_size": "ffn_hidden_size",
        "hidden_act": "activation",
    },
    defaults={
        "hidden_act": "gelu",
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "multi_query": True,
        "parallel_attn": True,
    },
    norm="layer",
    **biases("bias"),
    gated=False,
    alibi="alibi",
    scales_alibi=True,
    multi_query="multi_query",
    by_head=True,
)
"""The MLP reads what attention has added, as in the smallest models."""
_PARALLEL_FALCON = replace(_FALCON, names=replace(_MEGATRON, before_mlp=None), parallel=True)

FAMILIES: Mapping[str, Family] = {
    "BloomForCausalLM": Family(
        names=replace(_MEGATRON, embedding_norm="word_embeddings_layernorm"),
        keys={
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "hidden_size": "n_embed",
            "max_position_embeddings": "seq_length",
            "norm_eps": "layer_norm_epsilon",
        },
        defaults={"norm_eps": 1e-5, "tie_word_embeddings": True},
        fixed={"hidden_act": "gelu_new"},
        expects={"apply_residual_connection_post_layernorm": False},
        norm="layer",
        **biases(True),
        gated=False,
        alibi=True,
        by_head=True,
    ),
    "MptForCausalLM": Family(
        names=Names(
            base="transformer.",
            embedding="wte",
            layer="blocks.{}.",
            before_attention="norm_1",
            before_mlp="norm_2",
            qkv=("attn.Wqkv",),
            out="attn.out_proj",
            up=("ffn.up_proj",),
            down="ffn.down_proj",
            final_norm="norm_f",
        ),
        keys={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
            "norm_eps": "layer_norm_epsilon",
            "clip_qkv": "attn_config.clip_qkv",
            "alibi": "attn_config.alibi",
            "alibi_bias_max": "attn_config.alibi_bias_max",
            "attention_multiplier": "attn_config.softmax_scale",
            "attn_type": "attn_config.attn_type",
            "prefix_lm": "attn_config.prefix_lm",
            "qk_ln": "attn_config.qk_ln",
        },
        defaults={
            "norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "no_bias": True,
            "expansion_ratio": 4,
            "alibi": True,
            "attn_type": "multihead_attention",
        },
        fixed={"hidden_act": "gelu"},
        expects={
            "no_bias": True,
            "expansion_ratio": 4,
            "alibi": True,
            "attn_type": "multihead_attention",
            "prefix_lm": False,
            "qk_ln": False,
            "logit_scale": None,
        },
        norm="layer",
        **biases(False),
        gated=False,
        alibi=True,
    ),
    "FalconForCausalLM": replace(
        _PARALLEL_FALCON,
        expects={"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
        multi_query=False,
        otherwise=replace(
            _PARALLEL_FALCON,
            names=replace(_MEGATRON, before_attention="ln_attn", before_mlp="ln_mlp"),
            expects={"new_decoder_architecture": True},
            multi_query=False,
            otherwise=replace(_PARALLEL_FALCON, expects={"parallel_attn": True}, otherwise=_FALCON),
        ),
    ),
}
