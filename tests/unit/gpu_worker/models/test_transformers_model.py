"""Models that transformers runs on paged memory give the results of transformers alone."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.memory.cache import bytes_per_block
from gpu_worker.memory.host import HostPages
from gpu_worker.models import trial
from gpu_worker.models.families import family_of
from gpu_worker.models.load import load_model
from gpu_worker.models.transformers_model import TransformersModel
from tests.support.logits import watch_logits
from tests.support.tiny_models import tiny_model
from tests.unit.gpu_worker.behaviour.test_families import (
    BLOOM,
    FALCON_H1,
    GPT,
    KIMI,
    LENGTH,
    PROMPT,
    random_model,
)
from tests.unit.gpu_worker.conftest import BACK_ENDS, TRITON, back_end, makers

GEMMA_4: dict[str, Any] = {
    "head_dim": 8,
    "global_head_dim": 16,
    "vocab_size_per_layer_input": 97,
    "hidden_size_per_layer_input": 0,
    "sliding_window": 9,
    "final_logit_softcapping": 5.0,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Cohere, norms of heads": ("CohereForCausalLM", {"logit_scale": 0.25, "use_qk_norm": True}),
    "Gemma 4, keys of earlier layers": (
        "Gemma4ForCausalLM",
        GEMMA_4
        | {
            "hidden_size_per_layer_input": 8,
            "num_hidden_layers": 5,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "layer_types": [
                f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full")
            ],
        },
    ),
    "Ministral, windows": (
        "MinistralForCausalLM",
        {
            "head_dim": 8,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "Granite, learned sinks": (
        "GraniteSWAForCausalLM",
        {"sliding_window": 9, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "Llama 4": (
        "Llama4ForCausalLM",
        {
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "intermediate_size_mlp": 32,
            "head_dim": 8,
            "attention_chunk_size": 16,
            "floor_scale": 8,
            "attn_scale": 0.5,
            "num_hidden_layers": 4,
        },
    ),
    "MiniCPM 3, values shorter than keys": (
        "MiniCPM3ForCausalLM",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
        },
    ),
    "GPT-2, scores by layer": ("GPT2LMHeadModel", GPT | {"scale_attn_by_inverse_layer_idx": True, "seed": 1}),
    "GPT-2, plain scores": ("GPT2LMHeadModel", GPT | {"scale_attn_weights": False, "seed": 1}),
    "Nemotron": ("NemotronForCausalLM", {}),
    "OPT, norms behind": (
        "OPTForCausalLM",
        {
            "num_key_value_heads": 4,
            "ffn_dim": 48,
            "word_embed_proj_dim": 16,
            "do_layer_norm_before": False,
            "dropout": 0.0,
        },
    ),
    "StableLM, norms of heads": (
        "StableLmForCausalLM",
        {"hidden_size": 64, "partial_rotary_factor": 0.5, "qk_layernorm": True},
    ),
}


MIXTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "OLMoE, clamped": ("OlmoeForCausalLM", {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 0.5}),
    "Gemma 4 MoE, keys as values": (
        "Gemma4ForCausalLM",
        GEMMA_4
        | {
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "ERNIE 4.5 MoE": (
        "Ernie4_5_MoeForCausalLM",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
    ),
    "Phi 3.5 MoE": ("PhimoeForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Granite MoE": ("GraniteMoeForCausalLM", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Aria": (
        "AriaTextForCausalLM",
        {"head_dim": 8, "moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
    ),
    "Hunyuan MoE": ("HunYuanMoEV1ForCausalLM", {"head_dim": 8, "num_experts": 4, "moe_topk": 2}),
}
"""Their heads ask the decoder for more than hidden states. To a back end they are like others."""


@pytest.mark.parametrize("name", MODELS)
def test_equals_transformers(make: Any, tmp_path: Path, name: str) -> None:
    check(make, *MODELS[name], tmp_path)


@pytest.mark.parametrize("back", BACK_ENDS if TRITON else [build.supported()[0]])
@pytest.mark.parametrize("name", MIXTURES)
def test_mixtures_equal_transformers(back: str, tmp_path: Path, name: str) -> None:
    check(makers(back_end(back)), *MIXTURES[name], tmp_path)


def check(make: Any, architecture: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = random_model(architecture, changes)
    model.save_pretrained(tmp_path)
    assert family_of(architecture, json.loads((tmp_path / "config.json").read_text())) is None
    runner = make.runner(tmp_path, block_size=3, num_blocks=96, max_model_len=96)
    seen = watch_logits(runner)
    driver = make.Driver(runner)
    sequences = [driver.admit(slot, PROMPT[slot:]) for slot in range(3)]
    driver.mixed_steps(sequences, LENGTH)
    for sequence in sequences:
        known = sequence.tokens[: sequence.computed]
        with torch.inference_mode():
            expected = model(torch.tensor([known])).logits[0]
        logits = torch.stack([seen[sequence.slot, position] for position in range(LENGTH - 1)])
        torch.testing.assert_close(logits, expected, atol=5e-5, rtol=5e-5)
        assert sequence.tokens[1:] == known[1:] + expected[-1:].argmax(-1).tolist()


def test_pages_of_different_sizes_move_as_one_block(make: Any, tmp_path: Path) -> None:
    """Blocks go to host memory and back; a preempted sequence is computed again in other blocks."""
    model = random_model(*MODELS["Gemma 4, keys of earlier layers"])
    model.save_pretrained(tmp_path)
    runner = make.runner(tmp_path, block_size=3, num_blocks=64, max_model_len=96)
    assert [(each.heads, each.key_size) for each in runner.model.config.pages] == [(2, 8), (2, 16), (2, 8)]
    driver = make.Driver(runner)
    sequences = [driver.admit(slot, PROMPT[slot:]) for slot in range(2)]
    driver.mixed_steps(sequences, len(PROMPT) + 4)
    blocks = np.array(sequences[0].blocks, np.int32)
    host = HostPages(runner.caches, len(blocks))
    assert host.block_bytes == bytes_per_block(runner.model.config, 3, runner.caches[0].format)
    slots = np.arange(len(blocks), dtype=np.int32)[::-1].copy()
    host.swap_out(blocks, slots)
    for tensor in (tensor for cache in runner.caches for tensor in cache.tensors()):
        tensor[blocks] = torch.nan
    host.swap_in(slots, blocks)
    driver.release(sequences[1])
    again = driver.admit(1, sequences[1].tokens)
    driver.mixed_steps([sequences[0], again], LENGTH)
    for sequence in (sequences[0], again):
        with torch.inference_mode():
            expected = model(torch.tensor([sequence.tokens[:-1]])).logits[0].argmax(-1).tolist()
        start = len(PROMPT) - sequence.slot
        assert sequence.tokens[start:] == expected[start - 1 :]


def test_attention_to_later_tokens_is_refused_by_its_key(tmp_path: Path) -> None:
    random_model("Gemma4ForCausalLM", GEMMA_4 | {"use_bidirectional_attention": "all"}).save_pretrained(
        tmp_path
    )
    with pytest.raises(ModelError, match=r"Gemma4ForCausalLM.*use_bidirectional_attention is 'all'"):
        load(tmp_path)


def load(directory: Path, positions: int = 0) -> Any:
    return load_model(directory, torch.device("cpu"), ReferenceKernels(), torch.float32, positions)


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        (
            "BloomForCausalLM",
            {"apply_residual_connection_post_layernorm": True},
            "not every layer of it has attention",
        ),
        ("MambaForCausalLM", {"state_size": 4}, "not every layer of it has attention"),
        ("DiffLlamaForCausalLM", {}, "a layer of it attends more than once"),
        (
            "FalconH1ForCausalLM",
            {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "attention_bias": True},
            "each other|run",
        ),
        (  # its factor of logits lies with the decoder
            "FalconH1ForCausalLM",
            FALCON_H1
            | {"attention_bias": True, "mlp_bias": True, "projectors_bias": True, "num_key_value_heads": 1},
            "on pages it computes something else",
        ),
    ],
)
def test_what_cannot_be_paged_is_refused(
    tmp_path: Path, architecture: str, changes: dict[str, Any], message: str
) -> None:
    random_model(architecture, changes).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=message) as caught:
        load(tmp_path)
    assert architecture in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_log_says_in_what_a_model_is_unlike_its_family(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random_model(*MODELS["StableLM, norms of heads"]).save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO, logger="gpu_worker"):
        load(tmp_path)
    assert "StableLmForCausalLM that is unlike others in qk_layernorm" in caplog.text


def damaged(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    random_model(*MODELS["Nemotron"]).save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("architecture", "changes", "key"),
    [
        ("BloomForCausalLM", BLOOM, "apply_residual_connection_post_layernorm"),
        ("KimiLinearForCausalLM", KIMI, "tie_word_embeddings"),
    ],
)
def test_a_key_that_changes_the_arithmetic_is_named(
    tmp_path: Path, architecture: str, changes: dict[str, Any], key: str
) -> None:
    model = random_model(architecture, changes)
    model.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {key: not values[key]}))
    with pytest.raises(ModelError, match=rf"config.json: .*unlike other models of its family in {key}\)$"):
        load(tmp_path)


NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(NAME), f"tensor {NAME} is missing"),
        (
            lambda tensors: tensors.update({NAME: torch.ones(7, 32)}),
            rf"{NAME} has shape \[7, 32\].*\[48, 32\]",
        ),
        (lambda tensors: tensors.update(other=torch.ones(2)), "does not account for tensor other"),
    ],
)
def test_weights_that_do_not_fit_the_model_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    """transformers draws missing weights by chance, and says so in its log alone."""
    damaged(tmp_path, change)
    with pytest.raises(ModelError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["Gemma3n", "Gemma4", "Gemma4Unified"])
def test_the_language_model_of_one_that_sees_and_hears(make: Any, tmp_path: Path, name: str) -> None:
    model = tiny_model(f"{name}ForCausalLM")
    model.save_pretrained(tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())
    if text.pop("per_layer_config", None):  # published checkpoints have this key instead
        text["global_head_dim"] = 512
    whole = {"architectures": [f"{name}ForConditionalGeneration"], "text_config": text, "audio_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    tensors = {
        name.replace("model.", "model.language_model.", 1): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    parts = ["audio_tower", "embed_vision"]
    if name != "Gemma4Unified":
        parts.append("language_model.layers.3.self_attn.k_proj")  # layer 3 has no keys
    beside = {f"model.{part}.weight": torch.ones(2) for part in parts}
    save_file(tensors | beside, tmp_path / "model.safetensors", metadata={"format": "pt"})
    driver = make.Driver(make.runner(tmp_path, block_size=16, num_blocks=8, max_model_len=96))
    sequence = driver.admit(0, PROMPT)
    driver.generate(sequence, 16)
    with torch.inference_mode():
        expected = model(torch.tensor([sequence.tokens[:-1]])).logits[0].argmax(-1).tolist()
    assert sequence.tokens[len(PROMPT) :] == expected[len(PROMPT) - 1 :]


def test_code_of_a_model_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text("raise SystemExit('ran')")
    config = {"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="auto_map"):
        load(tmp_path)


def test_a_chunk_that_no_sequence_leaves_is_no_reason_to_refuse(tmp_path: Path) -> None:
    changes = {"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size_mlp": 32, "head_dim": 8}
    random_model("Llama4ForCausalLM", changes | {"attention_chunk_size": 64}).save_pretrained(tmp_path)
    assert load(tmp_path, 64).config.num_layers == 3


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_angles_that_depend_on_the_longest_sequence_of_a_step_are_refused(tmp_path: Path, kind: str) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 1.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [3.0] * 4, "original_max_position_embeddings": 96}
    random_model("NemotronForCausalLM", {"rope_parameters": rope}).save_pretrained(tmp_path)
    original = 96 if kind == "longrope" else 128
    with pytest.raises(ModelError, match=f"'{kind}'.*QUIRE_MAX_MODEL_LEN={original}"):
        load(tmp_path, original + 1)
    assert load(tmp_path, original).config.num_layers == 3


def test_a_model_that_computes_something_else_on_pages_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its masks have a window of which it says nothing to the function that computes attention."""
    from transformers.models.ministral import modeling_ministral

    plain = modeling_ministral.MinistralAttention.__init__

    def silent(self: Any, *given: Any, **named: Any) -> None:
        plain(self, *given, **named)
        self.sliding_window = None

    random_model(*MODELS["Ministral, windows"]).save_pretrained(tmp_path)
    load(tmp_path)
    monkeypatch.setattr(modeling_ministral.MinistralAttention, "__init__", silent)
    with pytest.raises(ModelError, match="computes something else than its own code"):
        load(tmp_path)


@pytest.mark.parametrize("wrong", [False, True])
def test_what_differs_where_numbers_are_rounded_is_tried_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    from transformers.models.gemma4 import modeling_gemma4

    plain, tried = modeling_gemma4.Gemma4TextAttention.__init__, list[bool]()

    def silent(self: Any, *given: Any, **named: Any) -> None:
        plain(self, *given, **named)
        self.sliding_window = None

    def differs(found: torch.Tensor, expected: torch.Tensor, exact: bool) -> bool:
        tried.append(exact)
        return (not exact and len(found) > trial.BESIDE) or trial_differs(found, expected, exact)

    trial_differs = trial.differs
    monkeypatch.setattr(trial, "differs", differs)
    model = random_model(*MODELS["Gemma 4, keys of earlier layers"]).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    if wrong:
        monkeypatch.setattr(modeling_gemma4.Gemma4TextAttention, "__init__", silent)
        with pytest.raises(ModelError, match="computes something else than its own code"):
            load_model(tmp_path, torch.device("cpu"), ReferenceKernels(), torch.bfloat16)
        assert tried == [False, True]
        return
    found = load_model(tmp_path, torch.device("cpu"), ReferenceKernels(), torch.bfloat16)
    assert tried == [False, True, False]
    assert isinstance(found, TransformersModel)
    after = dict(found._inner.named_parameters())
    # Products, and the embedding that the head shares, are Quire's by now.
    kept = {
        name: each for name, each in after.items() if each.numel() and each.untyped_storage().nbytes() > 4
    }
    before = dict(model.model.named_parameters())
    assert len(kept) > len(before) / 3
    assert all(each.equal(before[name]) for name, each in kept.items())
