"""The least that a step can take, against figures worked out by hand."""

from dataclasses import replace

import pytest
import torch

from gpu_worker.machine.rates import Rates
from gpu_worker.models.config import LatentConfig, ModelConfig
from gpu_worker.models.families.family import DeltaNet
from gpu_worker.models.families.llama import LLAMA
from gpu_worker.models.recurrent_config import RecurrentConfig
from gpu_worker.models.rope import RopeConfig
from gpu_worker.models.work import is_known, work

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


def test_a_step_that_samples_nothing_does_not_read_the_head() -> None:
    found = work(CONFIG, 4, 96, [3], [5], sampled=0)
    assert found.weight_bytes == 3 * LAYER * 4
    assert found.operations == 2 * 3 * LAYER * 3 + 4 * 3 * 8 * (3 + 4 + 5)


@pytest.mark.parametrize(("counts", "contexts"), [([1, 1], [10, 3]), ([6, 2, 5], [6, 9, 20])])
def test_a_layer_with_a_window_sees_no_further(counts: list[int], contexts: list[int]) -> None:
    found = work(replace(CONFIG, windows=(0, 4, 4)), 2, 24, counts, contexts)
    seen = read = 0
    for window in (99, 4, 4):
        for count, context in zip(counts, contexts, strict=True):
            seen += sum(min(position + 1, window) for position in range(context - count, context))
            read += min(context, window + count - 1)
    assert found.attention_operations == 4 * 8 * seen
    assert found.kv_bytes == 24 * read // 3


def test_parts_have_floors_of_their_own() -> None:
    found = work(CONFIG, 2, 24, [1], [40])
    rates = Rates(read=1.0, matrix=1e18)
    assert found.products_floor(rates) == found.weight_bytes
    assert found.attention_floor(rates) == found.kv_bytes == 40 * 24
    assert found.floor(rates) == found.weight_bytes + found.kv_bytes


def test_what_is_known_is_a_decoder_with_one_mlp_a_layer() -> None:
    assert is_known(CONFIG)
    assert not is_known(replace(CONFIG, latent=LatentConfig(8, 0, 4, 2, 4)))
    assert not is_known(object())


def test_a_recurrent_layer_reads_and_writes_states_instead() -> None:
    """Queries and keys of 2 heads of 3, values of 4 heads of 5: 32 channels."""
    delta = RecurrentConfig(frozenset({0, 2}), 4, 32, key_heads=2, heads=4, key_size=3, value_size=5)
    family = replace(LLAMA, gated_attention=True, recurrent=DeltaNet())
    found = work(replace(CONFIG, recurrence=delta, family=family), 2, 24, [1, 3], [10, 7])
    mlp, attention = 3 * 8 * 20, 8 * (8 + 8 + 4 + 4) + 8 * 8
    recurrent = 8 * (32 + 20 + 4 + 4) + 20 * 8
    assert found.weight_bytes == (3 * mlp + attention + 2 * recurrent + HEAD) * 2
    numbers = 3 * 32 + 4 * 3 * 5
    assert delta.state.block_bytes == 4 * numbers
    assert found.kv_bytes == 17 * 24 + 2 * 2 * 2 * 4 * numbers
    assert found.attention_operations == 4 * 8 * (10 + 5 + 6 + 7) + 6 * 2 * numbers * 4
    by_row = replace(delta, by_row=True, rank=6)
    down, up = 2 * 6 * 8, 6 * 20 + 6 * 4 * 3
    assert by_row.weights(8) == 8 * (32 + 4) + down + up + 20 * 8
    short = work(replace(CONFIG, recurrence=RecurrentConfig(frozenset({0}), 3, 8)), 2, 24, [1], [1])
    assert short.weight_bytes == (3 * mlp + 2 * (LAYER - mlp) + 4 * 8 * 8 + HEAD) * 2


def test_layers_may_have_one_part_alone_or_attention_and_a_recurrence() -> None:
    """A state space of 2 groups of 3 numbers and 4 heads of 5: 32 channels."""
    space = RecurrentConfig(
        frozenset({0}), 4, 32, key_heads=2, heads=4, key_size=3, value_size=5, gates=1, alone=frozenset({2})
    )
    mlp, attention, recurrent = 3 * 8 * 20, 8 * (8 + 4 + 4) + 8 * 8, 8 * (20 + 32 + 4) + 20 * 8
    found = work(replace(CONFIG, recurrence=space), 2, 24, [1], [10])
    assert found.weight_bytes == (mlp + attention + recurrent + HEAD) * 2
    assert found.kv_bytes == 10 * 24 + 2 * space.state.block_bytes
    both = replace(space, layers=frozenset({0, 1, 2}), alone=None, beside_attention=True)
    found = work(replace(CONFIG, recurrence=both), 2, 24, [1], [10])
    assert found.weight_bytes == (3 * (mlp + attention + recurrent) + HEAD) * 2
    assert found.kv_bytes == 10 * 24 + 3 * 2 * space.state.block_bytes
    assert found.attention_operations == 3 * (4 * 8 * 10 + 6 * space.state.block_bytes // 4)
