"""GPT-2 and families like it: layer norms, and mostly MLPs without gates."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Family, Names, biases

GPT = Names(
    base="transformer.",
    embedding="wte",
    positions="wpe",
    layer="h.{}.",
    before_attention="ln_1",
    before_mlp="ln_2",
    qkv=("attn.c_attn",),
    out="attn.c_proj",
    up=("mlp.c_fc",),
    down="mlp.c_proj",
    final_norm="ln_f",
)
GPT_KEYS = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "norm_eps": "layer_norm_epsilon",
    "hidden_act": "activation_function",
}
_GPT2 = Family(
    names=GPT,
    keys=GPT_KEYS,
    defaults={
        "hidden_act": "gelu_new",
        "tie_word_embeddings": True,
        "max_position_embeddings": 1024,
        "norm_eps": 1e-5,
        "scale_attn_weights": True,
    },
    expects={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    norm="layer",
    **biases(True),
    gated=False,
    rotary=False,
    transposed=True,
)

FAMILIES: Mapping[str, Family] = {
    "GPT2LMHeadModel": _GPT2,
    "GPTBigCodeForCausalLM": replace(
        _GPT2,
        defaults={**_GPT2.defaults, "hidden_act": "gelu_pytorch_tanh", "multi_query": True},
        expects={"scale_attn_weights": True},
        multi_query="multi_query",
        by_head=True,
        transposed=False,
    ),
    "OPTForCausalLM": Family(
        names=Names(
            base="model.decoder.",
            positions="embed_positions",
            before_attention="self_attn_layer_norm",
            before_mlp="final_layer_norm",
            out="self_attn.out_proj",
            up=("fc1",),
            down="fc2",
            final_norm="final_layer_norm",
        ),
        keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
        defaults={
            "intermediate_size": 3072,
            "hidden_act": "relu",
            "norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "do_layer_norm_before": True,
            "layer_norm_elementwise_affine": True,
            "enable_bias": True,
        },
        expects={
            "do_layer_norm_before": True,
            "layer_norm_elementwise_affine": True,
            "_remove_final_layer_norm": False,
        },
        norm="layer",
        **biases("enable_bias"),
        gated=False,
        rotary=False,
        position_offset=2,
    ),
    "Starcoder2ForCausalLM": Family(
        names=Names(up=("mlp.c_fc",), down="mlp.c_proj"),
        keys={"norm_eps": "norm_epsilon"},
        defaults={
            "hidden_act": "gelu_pytorch_tanh",
            "intermediate_size": 12288,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "norm_eps": 1e-5,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
        norm="layer",
        **biases("use_bias"),
        gated=False,
        windowed="everywhere",
    ),
    "StableLmForCausalLM": Family(
        keys={"norm_eps": "layer_norm_eps"},
        defaults={
            "num_key_value_heads": 32,
            "max_position_embeddings": 4096,
            "norm_eps": 1e-5,
            "partial_rotary_factor": 0.25,
        },
        rotates_in_part=True,
        expects={"qk_layernorm": False, "use_parallel_residual": False},
        norm="layer",
        qkv_bias="use_qkv_bias",
        out_bias=False,
        mlp_bias=False,
    ),
}
