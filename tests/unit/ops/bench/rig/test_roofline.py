"""The least that a step can take, against figures worked out by hand."""

import pytest
import torch

from gpu_worker.models.config import ModelConfig
from gpu_worker.models.families.llama import LLAMA
from gpu_worker.models.rope import RopeConfig
from ops.bench.rig.roofline import Rates, measured, work

CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    family=LLAMA,
    vocab_size=100,
    hidden_size=8,
    intermediate_size=20,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    max_position=64,
    norm_eps=1e-6,
    activation="silu",
    ropes=(RopeConfig(),) * 3,
    tie_word_embeddings=True,
    qkv_bias=False,
    out_bias=False,
    mlp_bias=False,
    parallel=False,
    windows=(0, 0, 0),
    dtype=torch.bfloat16,
)
LAYER = 8 * (8 + 4 + 4) + 8 * 8 + 3 * 8 * 20
HEAD = 100 * 8


def test_a_decode_reads_all_weights_and_its_contexts() -> None:
    found = work(CONFIG, 2, 24, [1, 1], [10, 7])
    assert found.weight_bytes == (3 * LAYER + HEAD) * 2
    assert found.kv_bytes == 17 * 24
    # Per token two operations for each weight; per token seen, four for each number of the query.
    assert found.operations == 2 * 2 * (3 * LAYER + HEAD) + 4 * 3 * 8 * 17


def test_a_prefill_is_causal_and_needs_the_head_once() -> None:
    found = work(CONFIG, 4, 96, [3], [5])
    assert found.operations == 2 * (3 * LAYER * 3 + HEAD) + 4 * 3 * 8 * (3 + 4 + 5)
    assert found.kv_bytes == 5 * 96


def test_the_floor_is_whichever_takes_longer() -> None:
    found = work(CONFIG, 2, 24, [1], [1])
    moved = found.weight_bytes + found.kv_bytes
    assert found.floor(Rates(read=moved / 3, matrix=1e18)) == pytest.approx(3)
    assert found.floor(Rates(read=1e18, matrix=found.operations / 5)) == pytest.approx(5)


def test_rates_are_those_of_a_machine(monkeypatch) -> None:
    monkeypatch.setattr("ops.bench.rig.roofline.READ_BYTES", 1 << 20)
    monkeypatch.setattr("ops.bench.rig.roofline.MATRIX", 128)
    before = torch.get_num_threads()
    rates = measured(torch.float32, 1)
    assert 1e6 < rates.read < 1e13
    assert 1e6 < rates.matrix < 1e15
    assert torch.get_num_threads() == before
