"""Llama and families like it: RMS norms before attention and MLP, rotary embeddings, gated MLPs."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Family, Names, biases

LLAMA = Family()
HEAD_NORMS = Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
_GLM = Family(
    names=Names(up=("mlp.gate_up_proj",)),
    defaults={
        "num_key_value_heads": 2,
        "max_position_embeddings": 131072,
        "partial_rotary_factor": 0.5,
        "rope_interleave": True,
        "head_dim": 128,
        "rms_norm_eps": 1.5625e-7,
        "attention_bias": True,
    },
    out_bias=False,
    mlp_bias=False,
    rotates_in_part=True,
)
_MINISTRAL_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
QWEN = {"use_sliding_window": False, "max_position_embeddings": 32768, "sliding_window": 4096}

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": Family(
        defaults={"num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096},
        windowed="named",
    ),
    "Ministral3ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 262144,
            "rms_norm_eps": 1e-5,
            "rope_parameters": _MINISTRAL_ROPE,
        },
        **biases(False),
        windowed="everywhere",
        scales_queries=True,
    ),
    "Qwen2ForCausalLM": Family(
        defaults={**QWEN, "num_key_value_heads": 32, "max_window_layers": 28},
        qkv_bias=True,
        out_bias=False,
        mlp_bias=False,
        windowed="late",
    ),
    "Qwen3ForCausalLM": Family(
        names=HEAD_NORMS,
        defaults={**QWEN, "num_key_value_heads": 32, "head_dim": 128, "max_window_layers": 28},
        windowed="late",
    ),
    "Phi3ForCausalLM": Family(
        names=Names(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
        defaults={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        **biases(False),
        windowed="everywhere",
        rotates_in_part=True,
    ),
    "SmolLM3ForCausalLM": Family(
        reads=("no_rope_layer_interval", "no_rope_layers"),
        defaults={
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "use_sliding_window": False,
            "no_rope_layer_interval": 4,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
        },
        windowed="unrotated",
    ),
    "GraniteForCausalLM": Family(
        reads=("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"),
        defaults={"attention_multiplier": 1.0},
    ),
    "SeedOssForCausalLM": Family(
        defaults={
            "attention_bias": True,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 524288,
        },
        out_bias="attention_out_bias",
    ),
    "Ernie4_5ForCausalLM": Family(
        defaults={
            "num_key_value_heads": 2,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "rope_interleave": True,
        },
        **biases("use_bias"),
    ),
    "GlmForCausalLM": _GLM,
    "Glm4ForCausalLM": replace(
        _GLM,
        names=replace(_GLM.names, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
    ),
}
