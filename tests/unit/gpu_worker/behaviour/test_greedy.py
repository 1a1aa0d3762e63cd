"""Greedy tokens and logits equal transformers', however the work is cut and laid out."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from gpu_worker.kernels.reference import attention as reference_attention

PROMPT = [5, 17, 3, 88, 41, 41, 9, 60, 2, 73, 28]
COUNT = 24
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
SHAPES = {
    "MHA": {"num_key_value_heads": 4},
    "GQA": {"num_key_value_heads": 2},
    "MQA": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "biased": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "wide heads": {"head_dim": 24},
}


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_of_llama(make, saved, changes) -> None:
    tiny = saved(**changes)
    driver = make.Driver(make.runner(tiny.directory))
    tokens = driver.generate(driver.admit(3, PROMPT), COUNT)
    assert tokens == make.expected(tiny.model, PROMPT, COUNT)
    assert len(set(tokens)) > 4, "a model that repeats itself shows little"


@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
@pytest.mark.parametrize("chunk", [1, 4, 11])
def test_block_sizes_and_chunks(make, tiny, block_size, chunk) -> None:
    runner = make.runner(tiny.directory, block_size=block_size, num_blocks=64)
    driver = make.Driver(runner, seed=block_size)
    tokens = driver.generate(driver.admit(0, PROMPT), COUNT, chunk=chunk)
    assert tokens == make.expected(tiny.model, PROMPT, COUNT)


def test_chunks_and_decodes_in_one_ragged_step(make, tiny) -> None:
    driver = make.Driver(make.runner(tiny.directory))
    first, second, third = (driver.admit(slot, PROMPT[slot:]) for slot in range(3))
    driver.step((second, 4), (first, 11))
    driver.step((second, 3), (first, 1), (third, 5))
    driver.step((first, 1), (third, 4), (second, 3))
    driver.step((third, 1), (first, 1), (second, 1))
    driver.release(first)
    fourth = driver.admit(0, PROMPT[4:])
    driver.step((fourth, 6), (second, 1), (third, 1))
    driver.step((fourth, 1), (third, 1))
    while len(second.tokens) < 24:
        driver.step((third, 1), (fourth, 1), (second, 1))
    for sequence, prompt in (
        (first, PROMPT),
        (second, PROMPT[1:]),
        (third, PROMPT[2:]),
        (fourth, PROMPT[4:]),
    ):
        output = sequence.tokens[len(prompt) :]
        assert output == make.expected(tiny.model, prompt, len(output))
        assert len(output) >= 4


@pytest.mark.parametrize("gathered", [1, 25, 40])
def test_long_decodes_in_several_calls(make, tiny, monkeypatch, gathered) -> None:
    monkeypatch.setattr(reference_attention, "GATHERED", gathered)
    driver = make.Driver(make.runner(tiny.directory))
    sequences = [driver.admit(slot, PROMPT[slot:]) for slot in range(5)]
    driver.step(*((sequence, len(sequence.tokens)) for sequence in sequences))
    for _ in range(11):
        driver.step(*((sequence, 1) for sequence in sequences))
    for slot, sequence in enumerate(sequences):
        assert sequence.tokens[11 - slot :] == make.expected(tiny.model, PROMPT[slot:], 12)


def test_a_shared_prefix_is_not_computed_again(make, tiny) -> None:
    driver = make.Driver(make.runner(tiny.directory))
    first = driver.admit(0, PROMPT)
    tokens = driver.generate(first, 6)
    message = make.plan(
        driver.steps + 1,
        [(5, 8, 3, 1)],
        new_slots=[make.slot(5, PROMPT, [*first.blocks[:2], driver.free[0]])],
    )
    assert make.unpack(driver.runner.execute(message).tokens) == tokens[:1]


def test_logits_at_every_position(make, tiny) -> None:
    runner = make.runner(tiny.directory)
    seen = []
    model = runner.model
    logits = model.logits
    model.logits = lambda hidden: seen.append(logits(hidden)) or seen[-1]
    driver = make.Driver(runner)
    sequence, other = driver.admit(0, PROMPT[:1]), driver.admit(1, PROMPT)
    for _ in range(20):
        driver.step((sequence, 1), *(((other, 11),) if not other.computed else ()))
    with torch.inference_mode():
        expected = tiny.model(torch.tensor([sequence.tokens[:-1]])).logits[0]
    torch.testing.assert_close(torch.stack([row[0] for row in seen]).cpu(), expected, atol=1e-5, rtol=1e-5)


def test_the_shipped_model(make) -> None:
    directory = Path("ops/tiny_model/model")
    if not directory.is_dir():
        pytest.skip("there is no shipped model")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    driver = make.Driver(make.runner(directory, block_size=16))
    prompt = torch.randint(10, 4000, (19,), generator=torch.Generator().manual_seed(1)).tolist()
    assert driver.generate(driver.admit(0, prompt), 32, chunk=7) == make.expected(model, prompt, 32)
