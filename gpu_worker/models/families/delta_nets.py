"""OLMo Hybrid and Kimi Linear: delta nets with separate projections, beside attention."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.experts import DEEPSEEK_V3_EXPERTS
from gpu_worker.models.families.family import DeltaNet, Family, KimiDelta, Latent, Names
from gpu_worker.models.families.olmo import OLMO_2

FAMILIES: Mapping[str, Family] = {
    "OlmoHybridForCausalLM": replace(
        OLMO_2,
        defaults={"linear_allow_neg_eigval": True, "linear_conv_kernel_dim": 4},
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
        keys={
            "head_dim": "qk_rope_head_dim",
            "max_position_embeddings": "model_max_length",
            "n_group": "num_expert_group",
            "n_shared_experts": "num_shared_experts",
            "norm_topk_prob": "moe_renormalize",
            "num_experts_per_tok": "num_experts_per_token",
        },
        defaults={
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
            qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            output_gates="self_attn.g_b_proj",
            updates="self_attn.b_proj",
            decays="self_attn.f_b_proj",
            filters=("self_attn.q_conv1d", "self_attn.k_conv1d", "self_attn.v_conv1d"),
            decay_rate="self_attn.A_log",
            decay_bias="self_attn.dt_bias",
            norm="self_attn.o_norm",
            norm_float32=True,
            activation="sigmoid",
            out="self_attn.o_proj",
        ),
        aliases={
            ".block_sparse_moe.": ".mlp.",
            ".w1.": ".gate_proj.",
            ".w2.": ".down_proj.",
            ".w3.": ".up_proj.",
        },
    ),
}
