"""Decoders whose attention and MLP read the same residual stream."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Family, Names, biases
from gpu_worker.models.families.layer_norms import GPT, GPT_KEYS

_COHERE = Family(
    reads=("logit_scale",),
    names=Names(before_mlp=None),
    keys={"norm_eps": "layer_norm_eps"},
    defaults={
        "norm_eps": 1e-5,
        "logit_scale": 0.0625,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "rope_interleave": True,
    },
    expects={"use_qk_norm": False},
    norm="layer",
    mlp_bias=False,
    parallel=True,
)

FAMILIES: Mapping[str, Family] = {
    "GPTNeoXForCausalLM": Family(
        names=Names(
            base="gpt_neox.",
            embedding="embed_in",
            qkv=("attention.query_key_value",),
            out="attention.dense",
            up=("mlp.dense_h_to_4h",),
            down="mlp.dense_4h_to_h",
            final_norm="final_layer_norm",
            head="embed_out",
        ),
        keys={
            "norm_eps": "layer_norm_eps",
            "rope_theta": "rotary_emb_base",
            "partial_rotary_factor": "rotary_pct",
            "use_parallel_residual": "use_parallel_residual",
        },
        defaults={
            "intermediate_size": 24576,
            "hidden_act": "gelu",
            "norm_eps": 1e-5,
            "attention_bias": True,
            "use_parallel_residual": True,
            "partial_rotary_factor": 0.25,
        },
        norm="layer",
        mlp_bias=True,
        gated=False,
        rotates_in_part=True,
        parallel="use_parallel_residual",
        by_head=True,
    ),
    "GPTJForCausalLM": Family(
        reads=("rotary_dim",),
        names=replace(
            GPT,
            positions=None,
            before_mlp=None,
            qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
            out="attn.out_proj",
            up=("mlp.fc_in",),
            down="mlp.fc_out",
        ),
        keys=GPT_KEYS,
        defaults={"hidden_act": "gelu_new", "norm_eps": 1e-5, "rotary_dim": 64, "rope_interleave": True},
        norm="layer",
        qkv_bias=False,
        out_bias=False,
        mlp_bias=True,
        head_bias=True,
        gated=False,
        parallel=True,
    ),
    "PhiForCausalLM": Family(
        names=Names(
            before_mlp=None,
            out="self_attn.dense",
            up=("mlp.fc1",),
            down="mlp.fc2",
            final_norm="final_layernorm",
        ),
        keys={"norm_eps": "layer_norm_eps"},
        defaults={
            "intermediate_size": 8192,
            "hidden_act": "gelu_new",
            "norm_eps": 1e-5,
            "partial_rotary_factor": 0.5,
        },
        rotates_in_part=True,
        expects={"qk_layernorm": False},
        norm="layer",
        **biases(True),
        head_bias=True,
        gated=False,
        parallel=True,
    ),
    "CohereForCausalLM": replace(_COHERE, defaults={**_COHERE.defaults, "rope_theta": 5e5}),
    "Cohere2ForCausalLM": replace(
        _COHERE,
        defaults={**_COHERE.defaults, "sliding_window": 4096, "sliding_window_pattern": 4},
        rotates_full_attention=False,
        windowed="by_pattern",
    ),
}
