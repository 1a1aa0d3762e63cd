"""GGUF files of every architecture and type: transformers' logits with the weights that they mean."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import KeptKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.kept import KeptReference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.step.predicted import PredictedTokens
from ops.model_directory.gguf.directory import as_directory
from ops.model_directory.gguf.file import read_gguf
from tests.support.gguf import KINDS, model_file, tokens, write_gguf
from tests.support.logits import watch_logits
from tests.support.predictors import add_predictor, logits_of
from tests.support.ranks import Together, same
from tests.unit.gpu_worker.behaviour.test_families import PROMPT, random_model
from tests.unit.gpu_worker.conftest import Driver, make_runner

SIZES = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "initializer_range": 0.06}
LINEAR = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    **{
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
GEMMA3 = {
    "head_dim": 32,
    "sliding_window": 9,
    "num_hidden_layers": 7,
    "query_pre_attn_scalar": 32,
    "rope_parameters": {
        "full_attention": LINEAR,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
GEMMA3_VALUES = {
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.sliding_window": 9,
    "rope.freq_base": 1e6,
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 8.0,
}
GEMMA2 = {
    "head_dim": 32,
    "sliding_window": 9,
    "query_pre_attn_scalar": 32,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 5.0,
}
GEMMA2_VALUES = {
    "attention.key_length": 32,
    "attention.value_length": 32,
    "attention.sliding_window": 9,
    "attn_logit_softcapping": 3.0,
    "final_logit_softcapping": 5.0,
}
GEMMA4 = {
    **{"head_dim": 32, "global_head_dim": 64, "num_hidden_layers": 5, "sliding_window": 9},
    **{"vocab_size_per_layer_input": 97, "final_logit_softcapping": 5.0, "tie_word_embeddings": True},
    "layer_types": [f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full")],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    },
}
GEMMA4_VALUES = {
    **{"attention.key_length": 64, "attention.value_length": 64, "attention.sliding_window": 9},
    **{"attention.key_length_swa": 32, "attention.value_length_swa": 32, "final_logit_softcapping": 5.0},
    **{"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4},
    "attention.sliding_window_pattern": [True, False, True, True, False],
}
HEADS_OF_32 = {"attention.key_length": 32, "attention.value_length": 32}
SECTIONS = {"rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 3}
"""Of models that see: positions of images in the rotary embedding, and layers that take images in."""
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
ROUTED = {"expert_count": 5, "expert_used_count": 2}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_VALUES = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 32,
}
GROWING = YARN | {
    **{"beta_fast": 4.0, "beta_slow": 0.5, "original_max_position_embeddings": 8},
    **{"mscale": 1.0, "llama_4_scaling_beta": 0.4},
}
GROWING_VALUES = YARN_VALUES | {
    **{"rope.scaling.yarn_beta_fast": 4.0, "rope.scaling.yarn_beta_slow": 0.5},
    **{"rope.scaling.original_context_length": 8, "attention.temperature_scale": 0.4},
}
"""Of Ministral 3, whose queries grow with their positions, beyond its original context alone."""
LATENT = EXPERTS | {
    **{"n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1},
    **{"kv_lora_rank": 256, "q_lora_rank": 256, "num_key_value_heads": 4},
    **{"qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "routed_scaling_factor": 1.7},
}
LATENT_VALUES = {
    **{"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 64},
    **{"expert_shared_count": 2, "leading_dense_block_count": 1, "expert_weights_scale": 1.7},
    **{"attention.kv_lora_rank": 256, "attention.value_length": 32, "rope.dimension_count": 16},
}
DELTA = {
    **{"head_dim": 32, "layer_types": ["linear_attention", "full_attention"]},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 8},
    **{"linear_key_head_dim": 32, "linear_value_head_dim": 32},
}
DELTA_VALUES = {
    **HEADS_OF_32,
    **{"rope.dimension_count": 8, "rope.dimension_sections": [2, 1, 1, 0], "full_attention_interval": 2},
    **{"ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2},
    **{"ssm.time_step_rank": 8, "ssm.inner_size": 256},
}
STATE_SPACES = {"mamba_n_heads": 4, "mamba_d_head": 128, "mamba_n_groups": 2, "mamba_d_state": 32}
STATE_SPACE_VALUES = {
    **{"ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2},
    **{"ssm.time_step_rank": 4, "ssm.inner_size": 512},
}
SCALES = {
    **{"embedding_multiplier": 6.0, "residual_multiplier": 0.22},
    **{"attention_multiplier": 0.2, "logits_scaling": 0.5},
}
SCALE_VALUES = {
    **{"embedding_scale": 6.0, "residual_scale": 0.22, "attention.scale": 0.2, "logit_scale": 0.5},
}
GRANITE = {
    **STATE_SPACES,
    **SCALES,
    **{"layer_types": ["linear_attention", "full_attention"], "position_embedding_type": None},
}
GRANITE_VALUES = {
    **STATE_SPACE_VALUES,
    **SCALE_VALUES,
    **{"rope.scaling.finetuned": False, "attention.head_count_kv": [0, 2]},
}
NEMOTRON = {"mamba_num_heads": 4, "mamba_head_dim": 128, "n_groups": 2, "ssm_state_size": 32, "head_dim": 64}
NEMOTRON_VALUES = STATE_SPACE_VALUES | {
    **{"attention.key_length": 64, "attention.value_length": 64, "attention.layer_norm_epsilon": 1e-5},
}
FALCON_H1 = STATE_SPACES | {"mamba_d_ssm": 512, "head_dim": 32, "rope_parameters": {"rope_theta": 1e11}}
FALCON_H1_VALUES = STATE_SPACE_VALUES | HEADS_OF_32 | {"rope.freq_base": 1e11}
MODELS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"tie_word_embeddings": True}, "llama", {"rope.dimension_count": 64}),
    "llama, YaRN": (
        "LlamaForCausalLM",
        {"rope_parameters": YARN | {"beta_fast": 2.0, "beta_slow": 0.5}},
        "llama",
        YARN_VALUES
        | {"rope.scaling.yarn_beta_fast": 2.0, "rope.scaling.yarn_beta_slow": 0.5}
        | {"rope.scaling.yarn_log_multiplier": 1.0},  # as in files of Devstral 2: nothing reads it
    ),
    "mistral3": (
        "Ministral3ForCausalLM",
        {"rope_parameters": GROWING | {"mscale_all_dim": 1.0}, "head_dim": 32},
        "mistral3",
        GROWING_VALUES | {"rope.scaling.yarn_log_multiplier": 1.0, **HEADS_OF_32},
    ),
    "mistral3, Devstral 2": (
        "Ministral3ForCausalLM",
        {"rope_parameters": GROWING | {"mscale_all_dim": 0.0, "llama_4_scaling_beta": 0.0}, "head_dim": 32},
        "mistral3",
        GROWING_VALUES
        | {"rope.scaling.yarn_log_multiplier": 0.0, "attention.temperature_scale": 0.0, **HEADS_OF_32},
    ),
    "mistral3, Mistral Small 3.1": (
        "MistralForCausalLM",
        {"sliding_window": None, "head_dim": 32},
        "mistral3",
        HEADS_OF_32,
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        {"num_hidden_layers": 4, "tie_word_embeddings": True},
        "smollm3",
        {"rope.freq_base": 2e6},
    ),
    "seed_oss": (
        "SeedOssForCausalLM",
        {"head_dim": 32, "attention_bias": True, "attention_out_bias": False},
        "seed_oss",
        HEADS_OF_32,
    ),
    "qwen2": ("Qwen2ForCausalLM", {}, "qwen2", {"rope.freq_base": 10000.0}),
    "qwen3": (
        "Qwen3ForCausalLM",
        {"head_dim": 32},
        "qwen3",
        {"attention.key_length": 32, "attention.value_length": 32},
    ),
    "qwen3vl": ("Qwen3ForCausalLM", {"head_dim": 32}, "qwen3vl", HEADS_OF_32 | SECTIONS),
    "gemma": (
        "GemmaForCausalLM",
        {"head_dim": 32},
        "gemma",
        {"attention.key_length": 32, "attention.value_length": 32},
    ),
    "gemma2": ("Gemma2ForCausalLM", GEMMA2, "gemma2", GEMMA2_VALUES),
    "gemma3": ("Gemma3ForCausalLM", GEMMA3, "gemma3", GEMMA3_VALUES),
    "gemma4": (
        "Gemma4ForCausalLM",
        GEMMA4 | {"hidden_size_per_layer_input": 32, "num_kv_shared_layers": 2, "use_double_wide_mlp": True},
        "gemma4",
        GEMMA4_VALUES
        | {"attention.shared_kv_layers": 2, "embedding_length_per_layer_input": 32}
        | {"feed_forward_length": [256, 256, 256, 512, 512]},
    ),
    "gemma4, experts": (
        "Gemma4ForCausalLM",
        GEMMA4
        | {"hidden_size_per_layer_input": 0, "enable_moe_block": True, "num_experts": 4}
        | {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
        | {"top_k_experts": 2, "moe_intermediate_size": 64},
        "gemma4",
        GEMMA4_VALUES
        | {"embedding_length_per_layer_input": 0, "expert_count": 4, "expert_used_count": 2}
        | {"expert_feed_forward_length": 64, "attention.head_count_kv": [2, 1, 2, 2, 1]},
    ),
    "phi3": ("Phi3ForCausalLM", {"sliding_window": 20}, "phi3", {"attention.sliding_window": 20}),
    "Mixtral": (
        "MixtralForCausalLM",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 64},
        "llama",
        ROUTED | {"rope.freq_base": 1e6},
    ),
    "qwen2moe": (
        "Qwen2MoeForCausalLM",
        EXPERTS | {"num_experts": 5, "shared_expert_intermediate_size": 96},
        "qwen2moe",
        ROUTED | {"expert_feed_forward_length": 64, "expert_shared_feed_forward_length": 96},
    ),
    "qwen3moe": (
        "Qwen3MoeForCausalLM",
        EXPERTS | {"num_experts": 5, "head_dim": 32, "norm_topk_prob": True},
        "qwen3moe",
        ROUTED | HEADS_OF_32 | {"expert_feed_forward_length": 64},
    ),
    "qwen3vlmoe": (
        "Qwen3MoeForCausalLM",
        EXPERTS | {"num_experts": 5, "head_dim": 32, "norm_topk_prob": True},
        "qwen3vlmoe",
        ROUTED | HEADS_OF_32 | SECTIONS | {"expert_feed_forward_length": 64},
    ),
    "olmoe": (
        "OlmoeForCausalLM",
        {"num_experts": 5, "num_experts_per_tok": 2, "intermediate_size": 64},
        "olmoe",
        ROUTED,
    ),
    "glm4moe": (
        "Glm4MoeForCausalLM",
        EXPERTS
        | {"n_routed_experts": 5, "head_dim": 32, "attention_bias": True, "use_qk_norm": True}
        | {"first_k_dense_replace": 1, "routed_scaling_factor": 1.7},
        "glm4moe",
        ROUTED
        | HEADS_OF_32
        | {"expert_feed_forward_length": 64, "expert_shared_count": 1, "leading_dense_block_count": 1}
        | {"expert_weights_scale": 1.7, "expert_weights_norm": True, "rope.dimension_count": 16}
        | {"block_count": 3, "nextn_predict_layers": 1},
    ),
    "minimax-m2": (
        "MiniMaxM2ForCausalLM",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 32, "rotary_dim": 16}
        | {"intermediate_size": 64},
        "minimax-m2",
        ROUTED
        | HEADS_OF_32
        | {"expert_feed_forward_length": 64, "expert_gating_func": 2}
        | {"rope.dimension_count": 16, "rope.freq_base": 5e6},
    ),
    "gpt-oss": (
        "GptOssForCausalLM",
        {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 32, "sliding_window": 9}
        | {"intermediate_size": 64, "rope_parameters": YARN | {"truncate": False}},
        "gpt-oss",
        ROUTED
        | HEADS_OF_32
        | YARN_VALUES
        | {"expert_feed_forward_length": 64, "attention.sliding_window": 9},
    ),
    "qwen35": (
        "Qwen3_5ForCausalLM",
        DELTA,
        "qwen35",
        DELTA_VALUES | {"block_count": 3, "nextn_predict_layers": 1},
    ),
    "qwen35moe": (
        "Qwen3_5MoeForCausalLM",
        DELTA | EXPERTS | {"num_experts": 5, "shared_expert_intermediate_size": 96},
        "qwen35moe",
        DELTA_VALUES | ROUTED | {"expert_feed_forward_length": 64, "expert_shared_feed_forward_length": 96},
    ),
    "lfm2": (
        "Lfm2ForCausalLM",
        {
            "layer_types": ["conv", "full_attention"],
            "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.5,
        },
        "lfm2",
        {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3, "rope.freq_base": 1e6},
    ),
    "lfm2moe": (
        "Lfm2MoeForCausalLM",
        EXPERTS | {"layer_types": ["full_attention", "conv"], "num_experts": 5, "num_dense_layers": 1},
        "lfm2moe",
        ROUTED
        | {"attention.head_count_kv": [2, 0], "shortconv.l_cache": 3, "rope.freq_base": 1e6}
        | {"expert_feed_forward_length": 64, "leading_dense_block_count": 1, "expert_gating_func": 2},
    ),
    "granite": ("GraniteForCausalLM", SCALES, "granite", SCALE_VALUES),
    "granitehybrid": (
        "GraniteMoeHybridForCausalLM",
        GRANITE | {"num_local_experts": 0, "shared_intermediate_size": 512},
        "granitehybrid",
        GRANITE_VALUES | {"expert_count": 0, "expert_shared_feed_forward_length": 512},
    ),
    "granitehybrid, experts": (
        "GraniteMoeHybridForCausalLM",
        GRANITE
        | {"num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 64}
        | {"mamba_conv_bias": False, "attention_bias": True},
        "granitehybrid",
        GRANITE_VALUES | ROUTED | {"expert_shared_feed_forward_length": 64},
    ),
    "nemotron_h": (
        "NemotronHForCausalLM",
        NEMOTRON | {"layers_block_type": ["linear_attention", "mlp", "full_attention"]},
        "nemotron_h",
        NEMOTRON_VALUES
        | {"attention.head_count_kv": [0, 0, 2], "feed_forward_length": [0, 256, 0], "block_count": 3},
    ),
    "nemotron_h_moe": (
        "NemotronHForCausalLM",
        NEMOTRON
        | {"layers_block_type": ["moe", "linear_attention", "full_attention", "moe"]}
        | {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
        | {"moe_shared_expert_intermediate_size": 96, "moe_latent_size": 256, "use_conv_bias": False}
        | {"n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.7, "norm_topk_prob": True},
        "nemotron_h_moe",
        NEMOTRON_VALUES
        | {"block_count": 5, "nextn_predict_layers": 1, "attention.head_count_kv": [0, 0, 2, 0, 2]}
        | {"feed_forward_length": [64, 0, 0, 64, 64], "expert_feed_forward_length": 64}
        | {"expert_count": 6, "expert_used_count": [2, 0, 0, 2, 2], "moe_latent_size": 256}
        | {"expert_shared_feed_forward_length": 96, "expert_shared_count": 1}
        | {"expert_group_count": 2, "expert_group_used_count": 1}
        | {"expert_weights_norm": True, "expert_weights_scale": 1.7},
    ),
    "falcon-h1": (
        "FalconH1ForCausalLM",
        FALCON_H1 | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
        "falcon-h1",
        FALCON_H1_VALUES,
    ),
    "falcon-h1, without norms": (
        "FalconH1ForCausalLM",
        FALCON_H1 | {"mamba_rms_norm": False, "mamba_conv_bias": False},
        "falcon-h1",
        FALCON_H1_VALUES,
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        {"num_heads": 4, "head_dim": 128, "n_groups": 2, "state_size": 32, "expand": 2},
        "mamba2",
        STATE_SPACE_VALUES
        | {"attention.head_count": 0, "attention.head_count_kv": None, "feed_forward_length": 0}
        | {"attention.layer_norm_rms_epsilon": 1e-5},
    ),
    "kimi-linear": (
        "KimiLinearForCausalLM",
        {key: value for key, value in LATENT.items() if "routed" not in key}
        | {"layer_types": ["linear_attention", "full_attention"], "q_lora_rank": None}
        | {"linear_num_heads": 4, "linear_head_dim": 64, "v_head_dim": 64}
        | {"num_experts": 6, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.7},
        "kimi-linear",
        LATENT_VALUES
        | {"attention.head_count_kv": [0, 1], "ssm.conv_kernel": 4, "kda.head_dim": 64}
        | {"attention.key_length": 272, "attention.key_length_mla": 48}
        | {"attention.value_length": 256, "attention.value_length_mla": 64}
        | {"expert_gating_func": 2, "context_length": 128},
    ),
    "DeepSeek V2, lite": (
        "DeepseekV2ForCausalLM",
        LATENT | {"q_lora_rank": None, "topk_method": "greedy"},
        "deepseek2",
        LATENT_VALUES | {"attention.key_length": 48},
    ),
    "DeepSeek V3": (
        "DeepseekV3ForCausalLM",
        LATENT
        | {"n_group": 2, "topk_group": 1, "rope_parameters": YARN | {"mscale": 0.8, "mscale_all_dim": 0.8}},
        "deepseek2",
        LATENT_VALUES
        | YARN_VALUES
        | {"expert_gating_func": 2, "expert_group_count": 2, "expert_group_used_count": 1}
        | {"attention.key_length": 272, "attention.key_length_mla": 48, "attention.value_length": 256}
        | {"attention.value_length_mla": 32, "attention.q_lora_rank": 256, "attention.head_count_kv": 1}
        | {"rope.scaling.yarn_log_multiplier": 0.08, "expert_weights_norm": True},
    ),
}


def written(tmp_path: Path, name: str, kind_of: Any, more: dict[str, Any] | None = None) -> tuple[Path, Path]:
    """A GGUF file, and the directory with the weights that it means."""
    architecture, changes, own, values = MODELS[name]
    random_model(architecture, SIZES | changes | (more or {})).save_pretrained(tmp_path / "source")
    return model_file(tmp_path / "source", tmp_path, own, values | tokens(97), kind_of)


def compare(file: Path, meant: Path, kernels: Kernels | None = None, most: float = 5e-5) -> None:
    """Logits of a prompt, in two chunks, and of 8 tokens after it."""
    theirs = AutoModelForCausalLM.from_pretrained(meant, attn_implementation="eager").eval()
    runner = make_runner(as_directory(file), kernels or ReferenceKernels())
    seen, driver = watch_logits(runner), Driver(runner)
    sequence = driver.admit(0, PROMPT)
    driver.step((sequence, 7))
    driver.generate(sequence, 8)
    known = sequence.tokens[: sequence.computed]
    with torch.inference_mode():
        expected = theirs(torch.tensor([known])).logits[0]
    found = torch.stack([seen[0, position] for position in range(len(known))])
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, atol=most, rtol=most)


@pytest.fixture(scope="module")
def compiled() -> Path:
    """Where the compiled kernels are, before a test has a cache of its own."""
    return build.cache()


@pytest.fixture
def cpp(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> KeptKernels:
    monkeypatch.setattr(build, "cache", lambda: compiled)
    return KeptKernels(library.load(build.supported()[0], 1))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_every_architecture_equal_transformers(tmp_path: Path, name: str) -> None:
    mixed = {
        "attn_v": "Q6_K",
        "ffn_down": "Q5_0",
        **{"ffn_down_exps": "MXFP4", "ffn_down_shexp": "IQ4_NL", "ffn_gate_inp": None, "attn_k_b": "Q8_0"},
        "attn_output": "Q8_0",
        **{"token_embd": "Q8_0", "per_layer_token_embd": "Q8_0", "proj": "Q8_0"},
        "output": None,
        **{"ssm_conv1d": None, "conv": None, "ssm_out": "Q8_0", "ssm_f_b": "Q8_0", "ssm_g_b": "Q8_0"},
        **{f"ssm_conv1d_{one}": None for one in ("q", "k", "v")},
    }
    file, meant = written(tmp_path, name, lambda own: mixed.get(own.split(".")[-2], "Q4_K"))
    compare(file, meant)


@pytest.mark.parametrize("name", ["glm4moe", "qwen35", "DeepSeek V3"])
def test_a_layer_for_multi_token_prediction(tmp_path: Path, name: str) -> None:
    """Its guesses are those of the weights that the file means."""
    architecture, changes, own, values = MODELS[name]
    model = random_model(architecture, SIZES | changes)
    model.save_pretrained(tmp_path / "source")
    add_predictor(tmp_path / "source", model, numbered=True)
    values = {**values, "block_count": model.config.num_hidden_layers + 1, "nextn_predict_layers": 1}
    kinds = {"nextn": "Q8_0", "attn_v": "Q6_K", "ffn_down": "Q8_0", "token_embd": "Q8_0"}

    def kind_of(tensor: str) -> str | None:
        return next((kind for part, kind in kinds.items() if part in tensor.split(".")), None)

    file, meant = model_file(tmp_path / "source", tmp_path, own, values | tokens(97), kind_of)
    found = []
    for directory in (as_directory(file), meant):
        settings = {"model": directory, "device": "cpu", "threads": 1, "kv_memory": "4MiB"}
        runner = load(WorkerSettings(**settings, speculation="mtp", kernels="torch", block_size=4))
        driver = Driver(runner)
        sequence = driver.admit(0, PROMPT)
        driver.step((sequence, len(PROMPT)))
        assert isinstance(runner.drafter, PredictedTokens)
        guesses = logits_of(runner.drafter.predictor)
        for _ in range(4):
            driver.step((sequence, 1), drafts={0: [-1, -1]})
        found.append((sequence.tokens, torch.cat(guesses)))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-3, rtol=1e-3)


def test_angles_of_llama_3(tmp_path: Path) -> None:
    """The file has its factors as a tensor."""
    file, meant = written(tmp_path, "llama", lambda own: None, {"rope_parameters": LLAMA3})
    config = LlamaConfig.from_pretrained(meant)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 1e4 ** -(torch.arange(0, 64, 2) / 64)
    factors = (plain / scaled).numpy().tobytes()
    model = read_gguf(file)
    tensors = {
        name: (0, place.shape, file.read_bytes()[place.start : place.start + place.nbytes])
        for name, place in model.tensors.items()
    }
    write_gguf(file, model.values, {**tensors, "rope_freqs.weight": (0, (32,), factors)})
    assert factors != torch.ones(32).numpy().tobytes()
    compare(file, meant)


def test_a_model_in_several_files(tmp_path: Path) -> None:
    file, meant = written(tmp_path, "qwen3", lambda own: "Q4_1")
    model, content = read_gguf(file), file.read_bytes()
    parts: list[dict[str, Any]] = [{}, {}, {}]
    for number, (name, place) in enumerate(model.tensors.items()):
        kind = KINDS.get(place.kind, (0,))[0]
        parts[number % 3][name] = kind, place.shape, content[place.start : place.start + place.nbytes]
    for number, part in enumerate(parts):
        split = {"split.no": number, "split.count": 3, "split.tensors.count": len(model.tensors)}
        values = split if number else {**model.values, **split}
        write_gguf(tmp_path / f"part-{number + 1:05}-of-00003.gguf", values, part)
    compare(tmp_path / "part-00002-of-00003.gguf", meant)


def test_experts_of_4_bits_stay_so(tmp_path: Path) -> None:
    file, meant = written(tmp_path, "Mixtral", lambda own: None if "gate_inp" in own else "Q4_0")
    compare(file, meant, KeptReference())


@pytest.mark.parametrize(("kind", "most"), [("Q4_0", 5e-5), ("Q4_1", 5e-5), ("Q4_K", 1e-2)])
def test_4_bits_stay_so_by_default(
    tmp_path: Path, kind: str, most: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Scales of Q4_K are rounded to float16, but not in embeddings and heads, which are codes."""
    caplog.set_level(logging.INFO, logger="gpu_worker")
    for name in ("llama", "qwen2"):  # head and embedding are one, or two
        file, meant = written(tmp_path / name, name, lambda own: kind)
        compare(file, meant, KeptReference(), most)
        assert " 100 % stay as they are" in caplog.text


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])  # head and embedding are one, or two
def test_ranks_keep_weights_of_a_vocabulary_that_they_do_not_divide(
    tmp_path: Path, name: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gpu_worker")
    path = as_directory(written(tmp_path, name, lambda own: kind)[0])
    alone = make_runner(path, KeptReference())
    ranks = Together(2, lambda ranks: make_runner(path, KeptReference(), ranks=ranks))
    assert caplog.text.count(" 100 % stay as they are") == 3
    seen = [watch_logits(runner) for runner in (alone, *ranks.runners)]
    for runner in (alone, ranks):
        driver = Driver(runner)
        driver.step((driver.admit(0, PROMPT), len(PROMPT)))
    expected, *found = (torch.stack([of[0, at] for at in range(len(PROMPT))]) for of in seen)
    assert expected.shape[1] == 97
    assert expected.std() > 0.3
    assert same(found)
    torch.testing.assert_close(found[0], expected, atol=5e-5, rtol=5e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2", "Mixtral", "granitehybrid, experts", "nemotron_h_moe"])
def test_types_of_one_file_stay_so_each_in_its_own(
    tmp_path: Path, name: str, cpp: KeptKernels, caplog: pytest.LogCaptureFixture
) -> None:
    """Also query, key and value of two types, which are one matrix. C++ kernels round activations."""
    caplog.set_level(logging.INFO, logger="gpu_worker")
    mixed: dict[str, str | None] = {"attn_v": "Q6_K", "attn_output": "Q5_K", "ffn_down": "Q8_0"}
    mixed |= {"token_embd": "Q6_K", "output": "Q6_K", "attn_q": "IQ4_XS", "attn_k": "Q3_K"}
    mixed |= {"ffn_down_exps": "MXFP4", "ffn_down_shexp": "IQ4_NL", "ssm_out": "Q5_K", "ssm_conv1d": None}
    file, meant = written(tmp_path, name, lambda own: mixed.get(own.split(".")[-2], "Q4_K"))
    back_ends: tuple[tuple[Kernels, float], ...] = ((KeptReference(), 1e-2), (cpp, 0.5))
    for kernels, most in back_ends:
        caplog.clear()
        compare(file, meant, kernels, most)
        assert " 100 % stay as they are" in caplog.text
