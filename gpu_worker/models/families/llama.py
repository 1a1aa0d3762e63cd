"""Llama and families like it: RMS norms before attention and MLP, rotary embeddings, gated MLPs."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Family, Names

LLAMA = Family()
HEAD_NORMS = Names(query_norm="self_attn.q_norm", key_norm="self_attn.k_norm")
_GLM = Family(
    names=Names(up=("mlp.gate_up_proj",)),
    defaults={
        "partial_rotary_factor": 0.5,
        "rope_interleave": True,
        "head_dim": 128,
        "rms_norm_eps": 1.5625e-7,
        "attention_bias": True,
    },
    out_bias=False,
    mlp_bias=False,
)

FAMILIES: Mapping[str, Family] = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": Family(windowed=True),
    "Ministral3ForCausalLM": Family(
        defaults={"head_dim": 128},
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        windowed=True,
        scales_queries=True,
    ),
    "Qwen2ForCausalLM": Family(
        defaults={"use_sliding_window": False},
        qkv_bias=True,
        out_bias=False,
        mlp_bias=False,
        windowed=True,
    ),
    "Qwen3ForCausalLM": Family(names=HEAD_NORMS, defaults={"use_sliding_window": False}, windowed=True),
    "Phi3ForCausalLM": Family(
        names=Names(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        windowed=True,
    ),
    "SmolLM3ForCausalLM": Family(
        defaults={"use_sliding_window": False, "rope_theta": 2e6, "tie_word_embeddings": True},
        windowed=True,
    ),
    "GraniteForCausalLM": LLAMA,
    "SeedOssForCausalLM": Family(
        defaults={"attention_bias": True, "head_dim": 128}, out_bias="attention_out_bias"
    ),
    "Ernie4_5ForCausalLM": Family(
        defaults={
            "tie_word_embeddings": True,
            "head_dim": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 5e5,
            "rope_interleave": True,
        },
        qkv_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
    ),
    "GlmForCausalLM": _GLM,
    "Glm4ForCausalLM": replace(
        _GLM,
        names=replace(_GLM.names, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
    ),
}
