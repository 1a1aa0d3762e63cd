"""Families with state spaces as Mamba-2 has them, beside layers with attention."""

from collections.abc import Mapping
from dataclasses import replace

from gpu_worker.models.families.family import Experts, Family, Mamba, Names, biases

_BAMBA_NAMES = Names(
    before_mlp="pre_ff_layernorm",
    up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    final_norm="final_layernorm",
)
_GRANITE = Family(
    reads=("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"),
    names=Names(up=("shared_mlp.input_linear",), down="shared_mlp.output_linear"),
    keys={"num_experts": "num_local_experts", "intermediate_size": "shared_intermediate_size"},
    expects={"num_experts": 0, "gate_and_up_apart": False},
    defaults={
        "attention_multiplier": 1.0,
        "full_attention_interval": 0,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "shared_expert_intermediate_size": 1024,
    },
    mlp_bias=False,
    rotary="position_embedding_type",
    recurrent=Mamba(),
)
_GRANITE_MOE = replace(
    _GRANITE,
    keys={"num_experts": "num_local_experts", "shared_expert_intermediate_size": "shared_intermediate_size"},
    expects={"gate_and_up_apart": False},
    experts=Experts(
        intermediate_size="intermediate_size",
        router="block_sparse_moe.router.layer",
        expert="block_sparse_moe.experts.{}.",
        up=("input_linear",),
        down="output_linear",
        normalized=True,
        stacked=True,
        shared="shared_mlp.",
    ),
)
_GRANITE_APART = replace(_GRANITE, names=Names(), expects={"num_experts": 0})
"""Granite in GGUF files, which have gate and up apart."""
_GRANITE_MOE_APART = replace(
    _GRANITE_MOE,
    names=Names(),
    expects={},
    experts=Experts(intermediate_size="intermediate_size", normalized=True, shared="mlp.shared_expert."),
)

FAMILIES: Mapping[str, Family] = {
    "NemotronHForCausalLM": Family(
        reads=("routed_scaling_factor",),
        names=Names(
            base="backbone.",
            embedding="embeddings",
            before_attention="norm",
            qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
            out="mixer.o_proj",
            up=("mixer.up_proj",),
            down="mixer.down_proj",
            final_norm="norm_f",
        ),
        aliases={"model.layers.": "backbone.layers."},
        keys={
            "hidden_act": "mlp_hidden_act",
            "layer_types": "layers_block_type",
            "mamba_conv_bias": "use_conv_bias",
            "mamba_d_conv": "conv_kernel",
            "mamba_d_head": "mamba_head_dim",
            "mamba_d_state": "ssm_state_size",
            "mamba_n_groups": "n_groups",
            "mamba_n_heads": "mamba_num_heads",
            "mamba_proj_bias": "use_bias",
            "norm_eps": "layer_norm_epsilon",
            "num_experts": "n_routed_experts",
            "shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
            "shortest_time_step": "time_step_min",
        },
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 21504,
            "shared_expert_intermediate_size": 7688,
            "max_position_embeddings": 4096,
            "hidden_act": "relu2",
            "mamba_d_head": 64,
            "mamba_n_groups": 8,
            "mamba_hidden_act": "silu",
            "norm_eps": 1e-5,
            "norm_topk_prob": True,
            "shortest_time_step": 0.001,
        },
        expects={"hidden_act": "relu2", "mlp_bias": False},
        norm="rms_float32",
        **biases(False),
        gated=False,
        rotary=False,
        experts=Experts(
            router="mixer.gate",
            expert="mixer.experts.{}.",
            up=("up_proj",),
            normalized="norm_topk_prob",
            scoring_func="sigmoid",
            score_correction_bias="mixer.gate.e_score_correction_bias",
            grouped=True,
            group_top_k=2,
            latent=("mixer.fc1_latent_proj", "mixer.fc2_latent_proj"),
            shared="mixer.shared_experts.",
        ),
        recurrent=Mamba(prefix="mixer.", alone=True),
        left_out=("mtp.",),
    ),
    "GraniteMoeHybridForCausalLM": replace(
        _GRANITE,
        otherwise=replace(_GRANITE_MOE, otherwise=replace(_GRANITE_APART, otherwise=_GRANITE_MOE_APART)),
    ),
    "BambaForCausalLM": Family(
        names=_BAMBA_NAMES,
        keys={"full_attn_idxs": "attn_layer_indices"},
        defaults={
            "full_attention_interval": 0,
            "num_key_value_heads": 8,
            "max_position_embeddings": 262144,
            "partial_rotary_factor": 0.5,
            "rms_norm_eps": 1e-5,
        },
        rotates_in_part=True,
        recurrent=Mamba(),
    ),
    "FalconH1ForCausalLM": Family(
        reads=("embedding_multiplier",),
        names=_BAMBA_NAMES,
        keys={"logit_scale": "lm_head_multiplier"},
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "mamba_norm_before_gate": True,
            "rms_norm_eps": 1e-5,
        },
        # Biases would have other factors than weights.
        expects=dict.fromkeys(("attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"), False),
        recurrent=Mamba(normed="mamba_rms_norm", norm_first="mamba_norm_before_gate", beside_attention=True),
        multipliers={
            "mamba.in_proj": [("ssm_in_multiplier", f"ssm_multipliers.{part}") for part in range(5)],
            "mamba.out_proj": [("ssm_out_multiplier",)],
            "self_attn.q_proj": [("attention_in_multiplier",)],
            "self_attn.k_proj": [("attention_in_multiplier", "key_multiplier")],
            "self_attn.v_proj": [("attention_in_multiplier",)],
            "self_attn.o_proj": [("attention_out_multiplier",)],
            "feed_forward.gate_proj": [("mlp_multipliers.0",)],
            "feed_forward.down_proj": [("mlp_multipliers.1",)],
        },
    ),
    "Mamba2ForCausalLM": Family(
        names=Names(base="backbone.", embedding="embeddings", before_attention="norm", final_norm="norm_f"),
        keys={
            "mamba_conv_bias": "use_conv_bias",
            "mamba_d_conv": "conv_kernel",
            "mamba_d_head": "head_dim",
            "mamba_d_state": "state_size",
            "mamba_n_groups": "n_groups",
            "mamba_n_heads": "num_heads",
            "mamba_proj_bias": "use_bias",
            "norm_eps": "layer_norm_epsilon",
            "num_attention_heads": "num_heads",
        },
        defaults={"full_attention_interval": 0, "head_dim": 64, "mamba_n_groups": 8, "norm_eps": 1e-5},
        gated=False,
        rotary=False,
        recurrent=Mamba(prefix="mixer.", alone=True),
    ),
}
