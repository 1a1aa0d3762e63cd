"""config.json of GGUF files: values that no test of logits reaches, and wrong ones."""

import struct
from pathlib import Path
from typing import Any

import pytest

from ops.model_directory.files import FileError
from ops.model_directory.gguf.config import config_of, generation_of, pooling_of, read_factors
from ops.model_directory.gguf.file import Gguf, read_gguf
from tests.support.gguf import write_gguf

SIZES = {
    "block_count": 2,
    "context_length": 128,
    "embedding_length": 64,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 0.5,
}
STATE_SPACE = {
    **{"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1},
    **{"ssm.time_step_rank": 4, "ssm.inner_size": 128},
}
MIXTURE = {"expert_count": 4, "expert_used_count": 2}
LATENT = {
    **{"attention.kv_lora_rank": 32, "attention.key_length": 24, "attention.value_length": 16},
    "rope.dimension_count": 8,
}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
WINDOWS = {"attention.sliding_window": 8}
EMBEDDING = {"token_embd.weight": (0, (7, 64), bytes(4 * 7 * 64))}


def a_file(tmp_path: Path, architecture: str = "llama", tensors: Any = None, **more: Any) -> Gguf:
    values = {f"{architecture}.{key}": value for key, value in (SIZES | more).items() if "general" not in key}
    values |= {key: value for key, value in more.items() if key.startswith(("general", "tokenizer"))}
    every = EMBEDDING | (tensors or {})
    path = tmp_path / "tiny.gguf"
    return read_gguf(write_gguf(path, {"general.architecture": architecture, **values}, every))


@pytest.mark.parametrize("architecture", ["deepseek2", "glm4moe"])
@pytest.mark.parametrize("layers", [0, 1])
def test_layers_for_multi_token_prediction(tmp_path: Path, architecture: str, layers: int) -> None:
    """None where the file has none: a config.json that says nothing means one in these families."""
    more = MIXTURE | {"nextn_predict_layers": layers, "expert_gating_func": 2}
    more |= LATENT if architecture == "deepseek2" else {}
    config = config_of(a_file(tmp_path, architecture, **more), {})
    assert (config["num_nextn_predict_layers"], config["num_hidden_layers"]) == (layers, 2 - layers)


def test_sizes(tmp_path: Path) -> None:
    config = config_of(a_file(tmp_path), {})
    assert config == {
        "made_of": "gguf",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 7,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 0.5,
        "rope_theta": 10000.0,
        "rotary_dim": 16,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "rope_interleave": True,
        "attention_bias": False,
        "mlp_bias": False,
    }


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [((0, 0), "float32"), ((1, 1), "float16"), ((30, 30), "bfloat16"), ((1, 8), "bfloat16")],
)
def test_type_of_activations(tmp_path: Path, kinds: tuple[int, int], dtype: str) -> None:
    sizes = {0: 4 * 64, 1: 2 * 64, 30: 2 * 64, 8: 68}
    first, second = ((kind, (7, 64), bytes(7 * sizes[kind])) for kind in kinds)
    config = config_of(a_file(tmp_path, tensors={"token_embd.weight": first, "output.weight": second}), {})
    assert config["torch_dtype"] == dtype
    assert config["tie_word_embeddings"] is False
    assert ("quantization_config" in config) == (8 in kinds)


def test_the_largest_gemma_scales_scores_by_another_size(tmp_path: Path) -> None:
    more = {"attention.key_length": 32, "attention.value_length": 32, "attention.sliding_window": 8}
    for layers, expected in ((2, 32), (46, 16)):
        config = config_of(a_file(tmp_path, "gemma2", block_count=layers, **more), {})
        assert config["query_pre_attn_scalar"] == expected


@pytest.mark.parametrize(
    ("architecture", "pattern", "windows"),
    [
        ("gemma2", None, "WFWFWFWF"),
        ("gemma3", None, "WWWWWFWW"),
        ("gpt-oss", None, "WFWFWFWF"),
        ("gemma2", 3, "WWFWWFWW"),
        ("gemma3", [True, True, False, True, False, False, True, False], "WWFWFFWF"),
    ],
)
def test_layers_with_windows(tmp_path: Path, architecture: str, pattern: Any, windows: str) -> None:
    """Of any period: Hugging Face's models of these families do not read one, or another one."""
    more = WINDOWS | MIXTURE | {"block_count": 8, "attention.sliding_window_pattern": pattern}
    given = {key: value for key, value in more.items() if value is not None}
    config = config_of(a_file(tmp_path, architecture, **given), {})
    assert config["sliding_window"] == 8
    names = {"W": "sliding_attention", "F": "full_attention"}
    assert config["layer_types"] == [names[each] for each in windows]


def test_pooling(tmp_path: Path) -> None:
    for number, mode in ((1, "mean"), (2, "cls"), (3, "lasttoken")):
        assert pooling_of(a_file(tmp_path, "qwen3", pooling_type=number)) == {"pooling_mode": mode}
    for none in ({}, {"pooling_type": 0}):
        assert pooling_of(a_file(tmp_path, "qwen3", **none)) == {}
    message = r"qwen3\.pooling_type: 4 is not supported \(1: mean, 2: cls, 3: lasttoken\)"
    with pytest.raises(FileError, match=message):
        pooling_of(a_file(tmp_path, "qwen3", pooling_type=4))


def test_scaled_angles(tmp_path: Path) -> None:
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    file = a_file(tmp_path, "qwen2", **yarn, **{"rope.scaling.original_context_length": 32})
    assert config_of(file, {})["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    file = a_file(tmp_path, "qwen2", **yarn, **{"rope.scaling.yarn_beta_fast": 4.0})
    assert config_of(file, {})["rope_scaling"]["beta_fast"] == 4.0
    file = a_file(tmp_path, "qwen3", **yarn, **{"rope.scaling.attn_factor": 0.5})
    assert config_of(file, {})["rope_scaling"]["attn_factor"] == 0.5
    for early in ({"rope.scale_linear": 8.0}, {"rope.scaling.factor": 8.0}):
        found = config_of(a_file(tmp_path, **early), {})["rope_scaling"]
        assert found == {"rope_type": "linear", "factor": 8.0}
    factors = {
        f"rope_factors_{name}.weight": (0, (4,), struct.pack("<4f", *numbers))
        for name, numbers in (("short", (1, 2, 3, 4)), ("long", (5, 6, 7, 8)))
    }
    file = a_file(tmp_path, "phi3", factors, **{"rope.scaling.original_context_length": 32})
    assert config_of(file, read_factors(file))["rope_scaling"] == {
        "rope_type": "longrope",
        "short_factor": [1, 2, 3, 4],
        "long_factor": [5, 6, 7, 8],
        "original_max_position_embeddings": 32,
        "factor": 4.0,
    }


def test_values_that_change_nothing(tmp_path: Path) -> None:
    """Converters write some of these beside what is read."""
    more = {"attention.causal": True, "attention.scale": 0.0, "logit_scale": 1.0}
    more |= {"swiglu_clamp_exp": [0.0, 0.0]}
    base = {"rope.freq_base": 5e3, "rope.freq_base_swa": 5e3, "rope.dimension_count_swa": 16}
    file = a_file(tmp_path, "qwen3", **more, **base, **{"rope.scaling.yarn_ext_factor": 1.0})
    assert config_of(file, {})["rope_theta"] == 5e3


def test_factors_of_dimensions_beside_a_factor_of_all(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": (0, (8,), bytes(32))}
    file = a_file(tmp_path, "llama", factors, **{"rope.scaling.factor": 8.0})
    with pytest.raises(FileError, match=r"llama\.rope\.scaling\.factor: is not supported beside"):
        config_of(file, read_factors(file))


def test_granite_without_scales_and_experts(tmp_path: Path) -> None:
    """A file that leaves a scale out, or has 0, has llama.cpp's own."""
    more = STATE_SPACE | {"rope.scaling.finetuned": False}
    file = a_file(tmp_path, "granitehybrid", logit_scale=0.0, **more, **{"attention.head_count_kv": [0, 2]})
    found = config_of(file, {})
    assert [found[f"{key}_multiplier"] for key in ("attention", "embedding", "residual")] == [0.25, 1.0, 1.0]
    assert (found["logits_scaling"], found["num_experts"], found["intermediate_size"]) == (1.0, 0, 96)
    assert (found["num_key_value_heads"], found["mamba_d_head"]) == (2, 32)


@pytest.mark.parametrize(
    ("architecture", "length"), [("granitehybrid", 131_072), ("nemotron_h", 262_144), ("mamba2", None)]
)
def test_a_context_length_that_is_none(tmp_path: Path, architecture: str, length: int | None) -> None:
    """llama.cpp's converter writes 2**20 for each model with state spaces."""
    more = STATE_SPACE | {"rope.scaling.finetuned": False}
    if architecture != "mamba2":
        more |= {"attention.head_count_kv": [0, 2], "feed_forward_length": [96, 0]}
    for given, expected in ((1 << 20, length), (4096, 4096)):
        file = a_file(tmp_path, architecture, **more | {"context_length": given})
        assert config_of(file, {}).get("max_position_embeddings") == expected


def test_end_tokens_and_sampling(tmp_path: Path) -> None:
    tokens = {
        "tokenizer.ggml.tokens": ["a", "<eos>", "b", "<|im_end|>", "<|end|>"],
        "tokenizer.ggml.token_type": [1, 3, 1, 3, 1],
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 2,
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 20,
    }
    found = generation_of(a_file(tmp_path, **tokens))
    assert found == {"eos_token_id": [1, 2, 3], "temperature": 0.5, "top_k": 20}


def test_what_ends_an_answer_of_gemma_4(tmp_path: Path) -> None:
    """A call of a tool does, though its token is shown."""
    tokens = {
        "tokenizer.ggml.tokens": ["<eos>", "<turn|>", "<|tool_response>", "<|tool_call>", "turn"],
        "tokenizer.ggml.token_type": [3, 3, 4, 4, 1],
    }
    assert generation_of(a_file(tmp_path, **tokens)) == {"eos_token_id": [0, 1, 2]}


@pytest.mark.parametrize(
    ("architecture", "more", "message"),
    [
        ("mamba", {}, r"general\.architecture: 'mamba' is not supported \(llama, "),
        ("llama", {"expert_count": 8}, r"llama\.expert_used_count: the value is missing"),
        ("glm4moe", {"expert_gating_func": 1}, r"glm4moe\.expert_gating_func: 1 is not supported \(2\)"),
        ("llama", {"block_count": "two"}, r"llama\.block_count: int or float or list is needed"),
        (
            "llama",
            {"feed_forward_length": [64, 96]},
            r"llama\.feed_forward_length: its layers have different sizes",
        ),
        (
            "llama",
            {"attention.value_length": 8},
            r"llama\.attention\.value_length: another size than of keys",
        ),
        (
            "gemma4",
            {"attention.sliding_window_pattern": [True]},
            r"gemma4\.attention\.sliding_window_pattern: a value for each of 2 layers is needed",
        ),
        (
            "granite",
            {"rope.scaling.finetuned": False},
            r"granite\.rope\.scaling\.finetuned: attention without positions is not supported",
        ),
        (
            "granitehybrid",
            {"attention.head_count_kv": [0, 2]},
            r"granitehybrid\.rope\.scaling\.finetuned: rotary embeddings are not supported beside state",
        ),
        (
            "nemotron_h_moe",
            {"attention.head_count_kv": [0, 2], "feed_forward_length": [64, 0], "expert_count": 4}
            | {"expert_used_count": [2, 3], **STATE_SPACE},
            r"nemotron_h_moe\.expert_used_count: its layers have different sizes",
        ),
        ("qwen2", {"rope.scaling.type": "linear"}, r"qwen2\.rope\.scaling\.factor: the value is missing"),
        ("llama", MIXTURE | {"expert_weights_norm": False}, r"llama\.expert_weights_norm: false is not"),
        (
            "deepseek2",
            LATENT | MIXTURE | {"expert_gating_func": 1, "expert_weights_norm": True},
            r"deepseek2\.expert_weights_norm: true is not supported",
        ),
        (
            "deepseek2",
            LATENT | MIXTURE | {"expert_gating_func": 2, "attention.temperature_scale": 0.1},
            r"deepseek2\.attention\.temperature_scale: 0\.1",
        ),
        (
            "qwen3moe",
            MIXTURE | {"expert_group_count": 4},
            r"qwen3moe\.expert_group_count: 4 is not supported \(1\)",
        ),
        ("llama", {"attention.sliding_window": 64}, r"llama\.attention\.sliding_window: 64 is not supported"),
        ("qwen3", {"final_logit_softcapping": 30.0}, r"qwen3\.final_logit_softcapping: 30\.0 is"),
        ("qwen3", {"attention.causal": False}, r"qwen3\.attention\.causal: False is not supported"),
        ("qwen2", {"logit_scale": 0.5}, r"qwen2\.logit_scale: 0\.5 is not supported"),
        ("llama", {"swiglu_clamp_exp": [0.0, 7.0]}, r"llama\.swiglu_clamp_exp: \[0\.0, 7\.0\] is"),
        (
            "qwen3",
            YARN | {"rope.scaling.yarn_attn_factor": 0.9},
            r"qwen3\.rope\.scaling\.yarn_attn_factor: 0\.",
        ),
        ("llama", {"rope.scaling.attn_factor": 0.5}, r"llama\.rope\.scaling\.attn_factor: 0\.5"),
        (
            "deepseek2",
            LATENT | MIXTURE | YARN | {"rope.scaling.attn_factor": 0.5},
            r"deepseek2\.rope\.scaling\.attn_factor: 0\.5",
        ),
        (
            "gemma2",
            WINDOWS | {"attention.sliding_window_pattern": 0},
            r"gemma2\.attention\.sliding_window_pattern: 0 is not supported",
        ),
        ("mistral3", YARN, r"mistral3\.rope\.scaling\.yarn_log_multiplier: the value is missing"),
        ("mistral3", YARN | MIXTURE, r"mistral3\.expert_count: experts are not supported beside scaled"),
        ("gemma2", WINDOWS | {"rope.freq_base_swa": 5e3}, r"gemma2\.rope\.freq_base_swa: 5000\.0"),
    ],
)
def test_wrong_values(tmp_path: Path, architecture: str, more: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError, match=message):
        config_of(a_file(tmp_path, architecture, **more), {})
