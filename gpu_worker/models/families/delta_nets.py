"""OLMo Hybrid, Kimi Linear and Ling 3: delta nets with separate projections, beside attention."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.experts import DEEPSEEK_V3_EXPERTS
from gpu_worker.models.families.family import DeltaNet, Family, KimiDelta, Latent, Names
from gpu_worker.models.families.olmo import OLMO_2

_KEYS = {
    "head_dim": "qk_rope_head_dim",
    "max_position_embeddings": "model_max_length",
    "n_group": "num_expert_group",
    "n_shared_experts": "num_shared_experts",
    "norm_topk_prob": "moe_renormalize",
    "num_experts_per_tok": "num_experts_per_token",
}

FAMILIES: Mapping[str, Family] = {
    "OlmoHybridForCausalLM": replace(
        OLMO_2,
        defaults={
            "max_position_embeddings": 65536,
            "linear_allow_neg_eigval": True,
            "linear_conv_kernel_dim": 4,
        },
        mlp_bias=False,
        rotary_by_base=True,
        recurrent=DeltaNet(
            qkv=("linear_attn.q_proj", "linear_attn.k_proj", "linear_attn.v_proj"),
            output_gates="linear_attn.g_proj",
            updates="linear_attn.b_proj",
            decays="linear_attn.a_proj",
            filters=("linear_attn.q_conv1d", "linear_attn.k_conv1d", "linear_attn.v_conv1d"),
            norm="linear_attn.o_norm",
            norm_eps=1e-5,
            out="linear_attn.o_proj",
        ),
        recurrent_names=Names(),
        aliases={
            ".attention_layer_norm.": ".input_layernorm.",
            ".feedforward_layer_norm.": ".post_attention_layernorm.",
        },
        left_out=("mtp.",),
    ),
    "KimiLinearForCausalLM": Family(
        reads=("routed_scaling_factor",),
        keys=_KEYS,
        defaults={
            "num_key_value_heads": 32,
            "max_position_embeddings": 1048576,
            "linear_num_heads": 32,
            "rms_norm_eps": 1e-5,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.446,
            "mla_use_nope": True,
            "moe_router_activation_func": "sigmoid",
            "use_grouped_topk": True,
        },
        expects={
            "kda_safe_gate": False,
            "mla_use_nope": True,
            "moe_router_activation_func": "sigmoid",
            "use_grouped_topk": True,
            "tie_word_embeddings": False,
        },
        mlp_bias=False,
        rotary=False,
        experts=DEEPSEEK_V3_EXPERTS,
        latent=Latent(),
        recurrent=KimiDelta(
            output_gates="self_attn.g_b_proj",
            decays="self_attn.f_b_proj",
            down=("self_attn.g_a_proj", "self_attn.f_a_proj"),
        ),
        aliases={
            ".block_sparse_moe.": ".mlp.",
            ".w1.": ".gate_proj.",
            ".w2.": ".down_proj.",
            ".w3.": ".up_proj.",
            ".forget_gate.": ".",
        },
    ),
    "BailingHybridForCausalLM": Family(
        reads=("routed_scaling_factor",),
        keys={
            **_KEYS,
            "full_attention_interval": "layer_group_size",
            "kda_head_dim": "head_dim",
            "rotary_dim": "qk_rope_head_dim",
        },
        defaults={
            "num_key_value_heads": 32,
            "max_position_embeddings": 262144,
            "full_attention_interval": 6,
            "first_k_dense_replace": 2,
            "kda_safe_gate": True,
            "n_group": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_nextn_predict_layers": 1,
            "rope_interleave": True,
            "rope_theta": 6e6,
            "routed_scaling_factor": 2.5,
            "score_function": "sigmoid",
            "topk_group": 4,
        },
        expects={
            "q_lora_rank": None,
            "rope_interleave": True,
            "score_function": "sigmoid",
            "tie_word_embeddings": False,
        },
        mlp_bias=False,
        experts=DEEPSEEK_V3_EXPERTS,
        latent=Latent(gates="self_attn.g_proj"),
        recurrent=KimiDelta(),
        aliases={
            "word_embeddings.": "embed_tokens.",
            ".attention.": ".self_attn.",
            ".self_attn.dense.": ".self_attn.o_proj.",
            ".mlp.gate.expert_bias": ".mlp.gate.e_score_correction_bias",
            ".forget_gate.": ".",
        },
    ),
}
