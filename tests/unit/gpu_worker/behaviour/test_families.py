"""Every family's logits and greedy tokens equal transformers', in chunks and mixed batches."""

import json
import logging
import re
import shutil
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gpu_worker.errors import ModelError
from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.cpu.kernels import OneDnnKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.config import read_config
from gpu_worker.models.families import FAMILIES
from tests.support.deployment import ROOT
from tests.support.logits import watch_logits
from tests.support.native import NO_ONEDNN_BFLOAT16
from tests.unit.gpu_worker.conftest import BACK_ENDS, TRITON, back_end, make_runner, makers

PROMPT = [5, 17, 3, 88, 41, 41, 9, 60, 2, 73, 28, 54, 12, 90, 33, 71, 8, 26, 65]
LENGTH = len(PROMPT) + 64
BLOCK_SIZES = (1, 3, 16, 64)

USUAL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
GPT = {
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 128,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [1.0, 2.0, 3.0, 4.0],
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 9}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_experts": 5}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "q_lora_rank": 20,
}
DEEPSEEK = LATENT | {
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "n_group": 4,
    "topk_group": 2,
}
GLM_EXPERTS = {
    "head_dim": 16,
    "attention_bias": True,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "n_group": 4,
    "topk_group": 2,
}
STRETCHED = YARN | {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.4,
}
FLAT = {"beta_fast": 4.0, "beta_slow": 0.5, "mscale_all_dim": 0.0, "llama_4_scaling_beta": 0.0}
"""Of Devstral 2: with zeros there is neither growth nor a scale of scores."""
DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "head_dim": 16,
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 40,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "initializer_range": 0.12,  # with larger weights small differences grow from layer to layer
}
KIMI = LATENT | {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_head_dim": 20,
    "linear_num_heads": 2,
    "q_lora_rank": None,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "initializer_range": 0.12,
}
LING = KIMI | {"head_dim": 20, "n_shared_experts": 1, "first_k_dense_replace": 1}
SHORT = {"layer_types": ["conv", "full_attention", "conv"], "conv_bias": True}
NEMOTRON = {
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 20,
    "n_groups": 2,
    "ssm_state_size": 12,
    "time_step_min": 0.5,
}
NEMOTRON_3 = NEMOTRON | {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "linear_attention"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 1.7,
    "n_group": 4,
    "topk_group": 2,
    "use_conv_bias": False,
}
BAMBA = {
    "mamba_n_heads": 4,
    "mamba_n_groups": 2,
    "mamba_d_state": 12,
    "time_step_limit": [0.3, 1.2],
    "mamba_proj_bias": True,
}
FALCON_H1 = BAMBA | {
    "mamba_proj_bias": False,
    "mamba_d_ssm": 48,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.6,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.7,
    "ssm_multipliers": [0.9, 1.1, 0.6, 1.4, 0.8],
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.9,
    "key_multiplier": 0.5,
    "mlp_multipliers": [0.8, 0.6],
}
GRANITE = BAMBA | {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.2,
    "logits_scaling": 3.0,
    "shared_intermediate_size": 40,
}
SHARP = YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}
BLOOM = {
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "hidden_size": 48,
    "intermediate_size": 192,
    "initializer_range": 0.5,
    "seed": 1,
}
MPT = {
    "intermediate_size": 128,
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 3,
    "num_key_value_heads": 4,
    "max_seq_len": 128,
    "attn_config": {"clip_qkv": 0.8, "softmax_scale": 0.3},
}
FALCON = {"num_kv_heads": 2, "layer_norm_epsilon": 1e-3}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", {"tie_word_embeddings": True, "seed": 1}),
    "Llama, YaRN": ("LlamaForCausalLM", {"rope_parameters": YARN}),
    "Mistral": ("MistralForCausalLM", {"sliding_window": 9}),
    "Qwen2": ("Qwen2ForCausalLM", {}),
    "Qwen2, windows": (
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "Qwen3": ("Qwen3ForCausalLM", {"head_dim": 16}),
    "Phi-3": ("Phi3ForCausalLM", {"sliding_window": 20}),
    "Phi-3, partial, short": (
        "Phi3ForCausalLM",
        {
            "hidden_size": 64,
            "rope_parameters": LONG | {"partial_rotary_factor": 0.5},
            "original_max_position_embeddings": 128,
        },
    ),
    "Phi-3, long": (
        "Phi3ForCausalLM",
        {"rope_parameters": LONG, "original_max_position_embeddings": 24},
    ),
    "OLMo 2": ("Olmo2ForCausalLM", {}),
    "Gemma": ("GemmaForCausalLM", {"head_dim": 16}),
    "Gemma 2": (
        "Gemma2ForCausalLM",
        GEMMA | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0, "seed": 1},
    ),
    "Gemma 3": (
        "Gemma3ForCausalLM",
        GEMMA | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "SmolLM3": ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0, 1], "tie_word_embeddings": False}),
    "GPT-2": ("GPT2LMHeadModel", GPT | {"seed": 4}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", {"hidden_size": 64, "num_key_value_heads": 4}),
    "GPT-NeoX, serial": (
        "GPTNeoXForCausalLM",
        {"use_parallel_residual": False, "attention_bias": False, "num_key_value_heads": 4, "seed": 4},
    ),
    "StarCoder2": ("Starcoder2ForCausalLM", {"sliding_window": 9}),
    "Mixtral": ("MixtralForCausalLM", {"num_local_experts": 5}),
    "Qwen2 MoE": ("Qwen2MoeForCausalLM", EXPERTS | {"shared_expert_intermediate_size": 40}),
    "Qwen3 MoE": ("Qwen3MoeForCausalLM", EXPERTS | {"head_dim": 16, "mlp_only_layers": [1]}),
    "Qwen3 MoE, normalized": ("Qwen3MoeForCausalLM", EXPERTS | {"head_dim": 16, "norm_topk_prob": True}),
    "DeepSeek V2": ("DeepseekV2ForCausalLM", DEEPSEEK | {"q_lora_rank": None, "topk_method": "greedy"}),
    "DeepSeek V2, groups, YaRN": (
        "DeepseekV2ForCausalLM",
        DEEPSEEK | {"topk_method": "group_limited_greedy", "rope_parameters": SHARP},
    ),
    "DeepSeek V3": ("DeepseekV3ForCausalLM", DEEPSEEK),
    "DeepSeek V3, YaRN": (
        "DeepseekV3ForCausalLM",
        DEEPSEEK
        | {"q_lora_rank": None, "norm_topk_prob": False, "rope_parameters": SHARP, "attention_bias": True},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        {
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            "sliding_window": 9,
            "swiglu_limit": 0.5,
            "intermediate_size": 64,
            "rope_parameters": YARN | {"truncate": False},
        },
    ),
    "BLOOM": ("BloomForCausalLM", BLOOM),
    "Phi": ("PhiForCausalLM", {"hidden_size": 64, "seed": 1}),
    "DeepSeek V3.2": (
        "DeepseekV32ForCausalLM",
        DEEPSEEK | {"index_topk": 8, "index_head_dim": 32, "index_n_heads": 16, "rope_parameters": SHARP},
    ),
    "Qwen3.5": ("Qwen3_5ForCausalLM", DELTA),
    "Qwen3 Next": ("Qwen3NextForCausalLM", DELTA | EXPERTS | {"shared_expert_intermediate_size": 40}),
    "LFM2": ("Lfm2ForCausalLM", SHORT | {"block_multiple_of": 8, "seed": 1}),
    "OLMo Hybrid": ("OlmoHybridForCausalLM", DELTA | {"rope_parameters": {"rope_theta": None}}),
    "Kimi Linear": ("KimiLinearForCausalLM", KIMI),
    "Ling 3": ("BailingHybridForCausalLM", LING),
    "Nemotron H": ("NemotronHForCausalLM", NEMOTRON | {"use_bias": True}),
    "Nemotron 3": ("NemotronHForCausalLM", NEMOTRON_3),
    "Falcon H1": ("FalconH1ForCausalLM", FALCON_H1),
    "Granite 4 H": ("GraniteMoeHybridForCausalLM", GRANITE | {"num_local_experts": 0, "mamba_n_groups": 1}),
    "Granite 4 H, experts": (
        "GraniteMoeHybridForCausalLM",
        GRANITE | {"num_local_experts": 5, "position_embedding_type": "rope", "attention_bias": True},
    ),
}

ALIKE: dict[str, tuple[str, dict[str, Any]]] = {
    "GLM 5": (
        "GlmMoeDsaForCausalLM",
        DEEPSEEK
        | {"index_topk": 16, "index_head_dim": 32, "index_n_heads": 16, "rope_parameters": SHARP}
        | {"indexer_types": ["full", "shared", "full"], "head_dim": 8},
    ),
    "MPT": ("MptForCausalLM", MPT),
    "Ministral 3": ("Ministral3ForCausalLM", {"head_dim": 16, "rope_parameters": STRETCHED}),
    "OLMoE": (
        "OlmoeForCausalLM",
        {"num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True, "seed": 2},
    ),
    "MiniMax M2": (
        "MiniMaxM2ForCausalLM",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16, "rotary_dim": 8},
    ),
    "GLM 4 MoE": ("Glm4MoeForCausalLM", GLM_EXPERTS | {"seed": 1}),
    "GLM 4 MoE, norms of heads": ("Glm4MoeForCausalLM", GLM_EXPERTS | {"use_qk_norm": True, "seed": 2}),
    "GLM 4 MoE Lite": (
        "Glm4MoeLiteForCausalLM",
        DEEPSEEK | {"mlp_layer_types": ["sparse", "dense", "sparse"]},
    ),
    "Youtu": (
        "YoutuForCausalLM",
        LATENT | {"rope_parameters": SHARP, "tie_word_embeddings": False, "seed": 2},
    ),
    "dots.llm1": (
        "Dots1ForCausalLM",
        GLM_EXPERTS | {"attention_bias": False, "sliding_window": 9, "max_window_layers": 1},
    ),
    "Falcon": ("FalconForCausalLM", FALCON | {"seed": 1}),
    "Falcon, biases": (
        "FalconForCausalLM",
        FALCON
        | {
            "alibi": True,
            "parallel_attn": False,
            "multi_query": False,
            "bias": True,
            "num_kv_heads": 4,
            "attention": "sdpa",  # the eager form adds these biases twice
        },
    ),
    "Falcon, two norms": ("FalconForCausalLM", FALCON | {"new_decoder_architecture": True, "seed": 1}),
    "Falcon, one norm": (
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    ),
    "StableLM": ("StableLmForCausalLM", {"hidden_size": 64, "use_qkv_bias": True}),
    "Granite": (
        "GraniteForCausalLM",
        {
            "embedding_multiplier": 6.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.2,
            "logits_scaling": 3.0,
        },
    ),
    "Seed-OSS": ("SeedOssForCausalLM", {"head_dim": 16, "attention_out_bias": True}),
    "ERNIE 4.5": (
        "Ernie4_5ForCausalLM",
        {"head_dim": 16, "use_bias": True, "tie_word_embeddings": False, "seed": 2},
    ),
    "Cohere": ("CohereForCausalLM", {"logit_scale": 0.25, "seed": 1}),
    "Cohere 2": ("Cohere2ForCausalLM", {"sliding_window": 9, "sliding_window_pattern": 2}),
    "OPT": (
        "OPTForCausalLM",
        {"num_key_value_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 32, "dropout": 0.0, "seed": 1},
    ),
    "Qwen3.5 MoE": ("Qwen3_5MoeForCausalLM", DELTA | EXPERTS | {"shared_expert_intermediate_size": 40}),
    "LFM2 MoE": ("Lfm2MoeForCausalLM", EXPERTS | SHORT | {"conv_bias": False, "num_dense_layers": 1}),
    "LFM2 MoE, plain router": (
        "Lfm2MoeForCausalLM",
        EXPERTS | SHORT | {"use_expert_bias": False, "num_dense_layers": 1, "norm_topk_prob": False},
    ),
    "Nemotron 3, latent experts": ("NemotronHForCausalLM", NEMOTRON_3 | {"moe_latent_size": 20}),
    "Bamba": ("BambaForCausalLM", BAMBA | {"attn_layer_indices": [1], "mlp_bias": True}),
    "Mamba-2": (
        "Mamba2ForCausalLM",
        {
            "num_heads": 4,
            "head_dim": 16,
            "n_groups": 2,
            "state_size": 12,
            "time_step_limit": [0.3, 1.2],
            "max_position_embeddings": 128,
        },
    ),
    "Falcon H1, norm first": (
        "FalconH1ForCausalLM",
        FALCON_H1 | {"mamba_rms_norm": True, "mamba_conv_bias": False, "mamba_n_groups": 1},
    ),
    "Falcon H1, norm last": (
        "FalconH1ForCausalLM",
        FALCON_H1 | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
    ),
    "GLM": ("GlmForCausalLM", {"head_dim": 16, "attention_bias": True, "seed": 1}),
    "GLM 4": ("Glm4ForCausalLM", {"head_dim": 16}),
    "OLMo": ("OlmoForCausalLM", {"clip_qkv": 0.5}),
    "OLMo 3": ("Olmo3ForCausalLM", {"sliding_window": 9, "rope_scaling": YARN | {"rope_theta": 500000.0}}),
    "EXAONE 4": ("Exaone4ForCausalLM", {"sliding_window": 9, "sliding_window_pattern": 2}),
    "GPT-J": ("GPTJForCausalLM", GPT | {"rotary_dim": 4}),
    "GPT BigCode": ("GPTBigCodeForCausalLM", GPT | {"seed": 4}),
    "GPT BigCode, all heads": ("GPTBigCodeForCausalLM", GPT | {"multi_query": False}),
    "OLMo Hybrid, rotary": (
        "OlmoHybridForCausalLM",
        DELTA | {"linear_allow_neg_eigval": False, "attention_bias": True, "seed": 3},
    ),
    "Ling 3, no bound, YaRN": (
        "BailingHybridForCausalLM",
        LING | {"kda_safe_gate": False, "attention_bias": True, "rope_parameters": SHARP},
    ),
    "Kimi Linear, compressed queries": (
        "KimiLinearForCausalLM",
        KIMI | {"q_lora_rank": 20, "norm_topk_prob": False, "attention_bias": True},
    ),
    "Devstral 2": ("Ministral3ForCausalLM", {"head_dim": 16, "rope_parameters": STRETCHED | FLAT}),
    "Qwen3 MoE, windows": (
        "Qwen3MoeForCausalLM",
        EXPERTS | {"head_dim": 16, "use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "Qwen2 MoE, windows": (
        "Qwen2MoeForCausalLM",
        EXPERTS | {"shared_expert_intermediate_size": 40, "use_sliding_window": True, "sliding_window": 9},
    ),
    "Qwen2 MoE, no biases": (
        "Qwen2MoeForCausalLM",
        EXPERTS | {"shared_expert_intermediate_size": 40, "qkv_bias": False, "norm_topk_prob": True},
    ),
    "Cohere 2, full attention": (
        "Cohere2ForCausalLM",
        {"sliding_window": 9, "layer_types": ["full_attention"] * 3, "seed": 1},
    ),
    "EXAONE 4, full attention": (
        "Exaone4ForCausalLM",
        {"sliding_window": 9, "layer_types": ["full_attention"] * 3, "seed": 2},
    ),
    "DeepSeek V3, no method of groups": ("DeepseekV3ForCausalLM", DEEPSEEK | {"topk_method": "greedy"}),
}
"""Models that use no feature of a back end that `MODELS` does not use: they are tested over one C++ back
end."""


def random_model(architecture: str, changes: dict[str, Any]) -> Any:
    """A tiny model with weights large enough that its tokens vary, and no weight left at zero or one."""
    torch.manual_seed(changes.get("seed", 0))
    kind = getattr(transformers, architecture)
    ours = ("seed", "attention")
    config = kind.config_class(**{key: value for key, value in (USUAL | changes).items() if key not in ours})
    # Other forms than the eager one leave out what they do not have, such as soft-caps.
    config._attn_implementation = changes.get("attention", "eager")
    code: Any = sys.modules[kind.__module__]
    if hasattr(code, "torch_recurrent_gated_delta_rule"):  # token after token, which loses less to rounding
        code.torch_chunk_gated_delta_rule = code.torch_recurrent_gated_delta_rule
    if hasattr(code, "recurrent_kimi_delta_attention"):
        code.chunk_kimi_delta_attention = code.recurrent_kimi_delta_attention
    model = kind(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("gate_up_proj_bias", "down_proj_bias", "sinks")):
            torch.nn.init.normal_(parameter, std=0.5)
        elif parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=0 if name.endswith("bias") else 0.7, std=0.2)
    for name, buffer in model.named_buffers():
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            torch.nn.init.normal_(buffer, std=0.2)
        elif name.endswith("layer_scalar"):
            torch.nn.init.normal_(buffer, mean=0.7, std=0.2)
    return model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each model as a directory, and loaded by transformers."""

    @cache
    def make(name: str) -> SimpleNamespace:
        model = random_model(*(MODELS | ALIKE)[name])
        directory = tmp_path_factory.mktemp("family")
        model.save_pretrained(directory)

        @cache
        def logits(*tokens: int) -> torch.Tensor:
            with torch.inference_mode():
                found: torch.Tensor = model(torch.tensor([tokens])).logits[0]
            return found

        return SimpleNamespace(logits=logits, directory=directory)

    return make


@pytest.mark.parametrize("number", range(len(MODELS)), ids=list(MODELS))
def test_equals_transformers(make: Any, models: Any, number: int) -> None:
    check(make, models(list(MODELS)[number]), number)


@pytest.mark.parametrize("name", BACK_ENDS if TRITON else ["torch", build.supported()[0]])
@pytest.mark.parametrize("number", range(len(ALIKE)), ids=list(ALIKE))
def test_those_alike_equal_transformers(models: Any, number: int, name: str) -> None:
    check(makers(back_end(name)), models(list(ALIKE)[number]), number)


def check(make: Any, found: Any, number: int) -> None:
    block_size = BLOCK_SIZES[number % len(BLOCK_SIZES)]
    runner = make.runner(
        found.directory, block_size=block_size, num_blocks=3 * 96 // block_size + 3, max_model_len=96
    )
    seen = watch_logits(runner)
    driver = make.Driver(runner, seed=number)
    sequences = [driver.admit(slot, PROMPT[slot:]) for slot in range(3)]
    driver.mixed_steps(sequences, LENGTH)
    for sequence in sequences:
        known = sequence.tokens[: sequence.computed]
        expected = found.logits(*known)
        logits = torch.stack([seen[sequence.slot, position] for position in range(len(known))])
        torch.testing.assert_close(logits, expected, atol=5e-5, rtol=5e-5)
        # Each token is what transformers says next after those before it, which is what greedy means.
        answer = expected[len(PROMPT) - sequence.slot - 1 :].argmax(-1).tolist()
        assert sequence.tokens[len(PROMPT) - sequence.slot :] == answer
    assert len(set(sequences[0].tokens[len(PROMPT) :])) > 4, "a model that repeats itself shows little"


@pytest.mark.parametrize("kernels", [*BACK_ENDS, "onednn"], indirect=True)
@pytest.mark.parametrize(
    "name",
    [
        "Llama",
        "OLMo 2",
        "Gemma 3",
        "GPT-NeoX",
        "Qwen3 MoE",
        "BLOOM",
        "Granite",
        "OLMo Hybrid",
        "Kimi Linear",
        "Ling 3",
        "Nemotron H",
        "Falcon H1",
    ],
)
def test_in_bfloat16(make: Any, kernels: Kernels, models: Any, name: str) -> None:
    """As close to float32 as transformers is in bfloat16."""
    if isinstance(kernels, OneDnnKernels) and NO_ONEDNN_BFLOAT16:
        pytest.skip(NO_ONEDNN_BFLOAT16)
    found = models(name)
    runner = make.runner(found.directory, dtype=torch.bfloat16)
    seen = watch_logits(runner)
    driver = make.Driver(runner)
    sequence = driver.admit(0, PROMPT)
    driver.step((sequence, len(PROMPT)))
    exact = found.logits(*PROMPT)
    ours = torch.stack([seen[0, position] for position in range(len(PROMPT))])
    narrow = AutoModelForCausalLM.from_pretrained(found.directory, dtype=torch.bfloat16)
    with torch.inference_mode():
        theirs = narrow(torch.tensor([PROMPT])).logits[0].float()
    assert (ours - exact).norm() < 1.5 * (theirs - exact).norm()


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in MODELS | ALIKE),
        *((name, torch.bfloat16) for number, name in enumerate(MODELS) if number % 4 == 0),
    ],
)
def test_a_token_has_the_same_bits_whatever_runs_beside_it(
    models: Any, name: str, dtype: torch.dtype
) -> None:
    """In any chunk, too. So an answer that goes on after a crash, with other rows beside it, is the same."""
    assert not differing(models(name).directory, dtype)


def differing(directory: Path, dtype: torch.dtype) -> list[int]:
    """Positions of two sequences whose logits have other bits when they are computed alone in one step."""
    make = makers(back_end(build.supported()[0]))

    def begin() -> tuple[Any, dict[tuple[int, int], torch.Tensor]]:
        runner = make.runner(directory, dtype=dtype, block_size=3, num_blocks=99, max_model_len=96)
        return make.Driver(runner, seed=1), watch_logits(runner)

    driver, beside = begin()
    sequences = [driver.admit(slot, PROMPT[slot:]) for slot in range(3)]
    driver.mixed_steps(sequences, len(PROMPT) + 16)
    found = list[int]()
    for sequence in sequences[:2]:
        driver, alone = begin()
        driver.step((driver.admit(0, sequence.tokens[: sequence.computed]), sequence.computed))
        found += (
            position
            for position in range(sequence.computed)
            if not beside[sequence.slot, position].equal(alone[0, position])
        )
    return found


OLD: dict[str, dict[str, Any]] = {
    "BLOOM": {"hidden_size": ..., "n_embed": 48},
    "OLMo 3": {"layer_types": ..., "rope_theta": 500000.0, "rope_scaling": YARN | {"rope_theta": 500000.0}},
    "Gemma 2": {"layer_types": ..., "rope_theta": 10000.0},
    "Gemma 3": {
        "layer_types": ...,
        "sliding_window_pattern": 2,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "tie_word_embeddings": ...,
    },
    "GPT-NeoX": {"rotary_pct": 0.25, "rotary_emb_base": 10000},
    "Bamba": {"rope_theta": 10000.0},
    "Granite 4 H": {"layer_types": ["mamba", "attention", "mamba"], "time_step_limit": [0.3, 1.2]},
    "Nemotron 3": {
        "layers_block_type": ...,
        "hybrid_override_pattern": "ME*EM",
        "num_hidden_layers": 5,
        "time_step_limit": [0.0, float("inf")],
    },
    "Phi-3, long": {
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 24,
        "rope_scaling": {"type": "longrope"} | {key: LONG[key] for key in ("short_factor", "long_factor")},
    },
    "Qwen2, windows": {"layer_types": ..., "rope_theta": 10000.0},
    "Qwen3 MoE": {"num_local_experts": ..., "num_experts": 5, "rope_theta": 10000.0},
}
"""Keys that older versions of transformers wrote otherwise, with their values. ...: the key is missing."""


@pytest.mark.parametrize("name", OLD)
def test_configurations_of_older_versions(models: Any, tmp_path: Path, name: str) -> None:
    new = models(name).directory
    values = json.loads((new / "config.json").read_text()) | {"rope_parameters": ...} | OLD[name]
    kept = {key: value for key, value in values.items() if value is not ...}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    assert read_config(tmp_path) == read_config(new)


def test_names_without_their_base_and_tensors_that_follow_from_others(
    make: Any, models: Any, tmp_path: Path
) -> None:
    found = models("GPT-2")
    shutil.copy(found.directory / "config.json", tmp_path)
    tensors = load_file(found.directory / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    assert bare.keys() != tensors.keys()
    save_file(bare | {"h.0.attn.bias": torch.ones(1, 1, 4, 4)}, tmp_path / "model.safetensors")
    first, second = (make.Driver(make.runner(directory)) for directory in (found.directory, tmp_path))
    assert first.generate(first.admit(0, PROMPT), 5) == second.generate(second.admit(0, PROMPT), 5)


@pytest.mark.parametrize("name", ["EXAONE 4", "Nemotron 3", "OLMo Hybrid", "Qwen3.5"])
def test_layers_for_prediction_are_left(models: Any, tmp_path: Path, name: str) -> None:
    """Published checkpoints have them beside the layers that config.json counts."""
    found = models(name)
    shutil.copy(found.directory / "config.json", tmp_path)
    tensors = load_file(found.directory / "model.safetensors")
    save_file(tensors | {"mtp.layers.0.norm.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    make_runner(tmp_path, ReferenceKernels())


@pytest.mark.parametrize(
    ("within", "head", "beside"),
    [("language_model.model.", "language_model.", ""), ("model.language_model.", "", "model.")],
)
def test_the_language_model_of_one_that_sees(
    models: Any, tmp_path: Path, within: str, head: str, beside: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As older and newer versions of transformers write it."""
    found = models("Mistral")
    text = json.loads((found.directory / "config.json").read_text())
    del text["architectures"]
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    tensors = {
        name.replace("model.", within) if name.startswith("model.") else head + name: tensor
        for name, tensor in load_file(found.directory / "model.safetensors").items()
    }
    save_file(
        tensors | {f"{beside}vision_tower.conv.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors"
    )
    plain = makers(ReferenceKernels())
    caplog.set_level(logging.INFO, logger="gpu_worker")
    first, second = (plain.Driver(plain.runner(each)) for each in (found.directory, tmp_path))
    assert first.generate(first.admit(0, PROMPT), 9) == second.generate(second.admit(0, PROMPT), 9)
    assert "text alone is served, 1 other tensors are left" in caplog.text


def test_one_that_sees_and_has_no_head_is_tied(models: Any, tmp_path: Path) -> None:
    """As transformers ties it, whichever of the two keys says so."""
    found = models("Llama")
    text = json.loads((found.directory / "config.json").read_text())
    assert text["tie_word_embeddings"]
    del text["architectures"]
    whole = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"tie_word_embeddings": False}))
    own = load_file(found.directory / "model.safetensors")
    tensors = {f"language_model.{name}": tensor for name, tensor in own.items()}
    assert not any("lm_head" in name for name in tensors)
    save_file(tensors | {"vision_tower.conv.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
    plain = makers(ReferenceKernels())
    first, second = (plain.Driver(plain.runner(each)) for each in (found.directory, tmp_path))
    assert first.generate(first.admit(0, PROMPT), 9) == second.generate(second.admit(0, PROMPT), 9)


@pytest.mark.parametrize(("outside", "inside"), [(True, False), (True, None), (False, True), (None, True)])
def test_the_head_belongs_to_the_whole(tmp_path: Path, outside: bool | None, inside: bool | None) -> None:
    """transformers ties it to the embeddings if the whole model's configuration says so."""
    text = USUAL | {"tie_word_embeddings": inside}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"tie_word_embeddings": outside}))
    assert read_config(tmp_path).tie_word_embeddings == (inside if outside is None else outside)


def test_a_stretch_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    """Only Ministral 3 scales queries by their positions, beyond its original context alone."""
    text = USUAL | {"rope_parameters": STRETCHED}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "text_config": text}
    for language, understood in (("ministral3", True), ("mistral", False)):
        text["model_type"] = language
        (tmp_path / "config.json").write_text(json.dumps(whole))
        if understood:
            assert read_config(tmp_path).architecture == "Ministral3ForCausalLM"
        else:
            with pytest.raises(ModelError, match="rope_parameters: 'llama_4_scaling_beta' is not understood"):
                read_config(tmp_path)


@pytest.mark.parametrize("changes", [{}, {"hidden_act": "gelu"}, {"hidden_activation": "gelu"}], ids=str)
@pytest.mark.parametrize("architecture", ["GemmaForCausalLM", "Gemma2ForCausalLM"])
def test_gelu_of_gemma(tmp_path: Path, architecture: str, changes: dict[str, str]) -> None:
    """Files of the first Gemma name the exact one, and mean its approximation."""
    (tmp_path / "config.json").write_text(
        json.dumps(USUAL | GEMMA | {"architectures": [architecture]} | changes)
    )
    theirs = getattr(transformers, architecture).config_class(**USUAL, **changes)
    named = theirs.hidden_act if architecture == "GemmaForCausalLM" else theirs.hidden_activation
    assert read_config(tmp_path).activation == {"gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}[named]


@pytest.mark.parametrize("architecture", ["GemmaForCausalLM", "Gemma2ForCausalLM"])
def test_a_gemma_whose_tokens_see_later_ones(tmp_path: Path, architecture: str) -> None:
    values = USUAL | GEMMA | {"architectures": [architecture], "use_bidirectional_attention": True}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ModelError, match=f"{architecture} is not supported"):
        read_config(tmp_path)


def test_what_gemma_3_leaves_out_of_its_text(tmp_path: Path) -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    whole = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    ours, theirs = read_config(tmp_path), transformers.Gemma3Config(text_config=text).text_config
    assert ours.dtype == torch.bfloat16
    assert ours.vocab_size == theirs.vocab_size
    assert (ours.num_heads, ours.num_kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
    assert (ours.head_dim, ours.max_position) == (theirs.head_dim, theirs.max_position_embeddings)
    assert ours.windows == tuple(1024 * (kind == "sliding_attention") for kind in theirs.layer_types)


def test_every_family_is_tested() -> None:
    assert {architecture for architecture, _ in (MODELS | ALIKE).values()} >= set(FAMILIES)


def test_the_table_in_the_documentation_says_over_what() -> None:
    rows = [line.split("|") for line in (ROOT / "docs" / "models.md").read_text().splitlines()]
    told = {name: row[5].strip() for row in rows if len(row) == 7 for name in re.findall(r"`(\w+)`", row[1])}
    thorough = {architecture for architecture, _ in MODELS.values()}
    for architecture in FAMILIES:
        assert told[architecture] == ("all" if architecture in thorough else "two"), architecture
