"""Models with sliding windows equal transformers, and read nothing that lies out of their windows."""

import json
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from gpu_worker.errors import ModelError
from gpu_worker.models.config import read_config
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from gpu_worker.startup.warmup import full_step
from scheduler_svc.core.request import Request
from tests.support.closed_loop import ClosedLoop
from tests.support.logits import watch_logits

WINDOW = 9
PROMPT = [5, 17, 3, 88, 41, 41, 9, 60, 2, 73, 28, 54, 12, 90, 33, 71, 8, 26, 65]


def mistral(**changes: Any) -> MistralForCausalLM:
    torch.manual_seed(0)
    values = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "sliding_window": WINDOW,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return MistralForCausalLM(MistralConfig(**{**values, **changes})).eval()


@pytest.fixture(scope="session")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    model = mistral()
    directory = tmp_path_factory.mktemp("windowed")
    model.save_pretrained(directory)
    return SimpleNamespace(model=model, directory=directory)


def forget(driver, sequences) -> None:
    """Take the blocks of which no row to come sees anything, for others to use, with NaN in them."""
    for sequence in sequences:
        gone = max(0, sequence.computed + 1 - WINDOW) // driver.size
        for number, block in enumerate(sequence.blocks[:gone]):
            if block is not None:
                for tensor in (each for cache in driver.runner.caches for each in cache.tensors()):
                    tensor[block] = torch.nan
                driver.free.insert(0, block)
                sequence.blocks[number] = None


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_logits_at_every_position_in_chunks_and_mixed_batches(make, windowed, block_size) -> None:
    """In a pool that could not hold the sequences if nothing were freed, unless blocks are that long."""
    num_blocks = {1: 60, 4: 16, 16: 12}[block_size]
    runner = make.runner(windowed.directory, block_size=block_size, num_blocks=num_blocks, max_model_len=100)
    seen = watch_logits(runner)
    driver = make.Driver(runner, seed=block_size)
    sequences = [driver.admit(slot, PROMPT[slot:]) for slot in range(3)]
    driver.mixed_steps(sequences, 84, lambda: forget(driver, sequences))
    assert len(seen) >= 3 * 83
    for sequence in sequences:
        known = sequence.tokens[: sequence.computed]
        with torch.inference_mode():
            expected = windowed.model(torch.tensor([known])).logits[0]
        found = torch.stack([seen[sequence.slot, position] for position in range(len(known))])
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)


def test_greedy_tokens(make, windowed) -> None:
    driver = make.Driver(make.runner(windowed.directory, max_model_len=100))
    tokens = driver.generate(driver.admit(0, PROMPT), 64, chunk=7)
    assert tokens == make.expected(windowed.model, PROMPT, 64)
    assert len(set(tokens)) > 8, "a model that repeats itself shows little"


def test_a_window_that_holds_all_changes_nothing(make, tmp_path) -> None:
    model = mistral(sliding_window=128)
    model.save_pretrained(tmp_path)
    driver = make.Driver(make.runner(tmp_path))
    assert driver.generate(driver.admit(0, PROMPT), 24) == make.expected(model, PROMPT, 24)


QWEN, EXAONE = ({"architectures": [f"{name}ForCausalLM"]} for name in ("Qwen2", "Exaone4"))
NAMED = ["sliding_attention", "full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (9, 9, 9)),
        ({"sliding_window": None}, (0, 0, 0)),
        ({"use_sliding_window": False, "sliding_window_pattern": 2}, (9, 9, 9)),
        (QWEN | {"use_sliding_window": False}, (0, 0, 0)),
        (EXAONE | {"sliding_window_pattern": 2}, (9, 0, 9)),
        (EXAONE | {"sliding_window_pattern": "LG"}, (9, 0, 0)),
        (EXAONE | {"sliding_window_pattern": "GL"}, (0, 9, 0)),
        (EXAONE | {"sliding_window_pattern": "LLLG"}, (9, 9, 0)),
        (EXAONE | {"sliding_window_pattern": "LLLG", "layer_types": NAMED}, (9, 0, 9)),
        ({"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}, (0, 9, 9)),
        ({"architectures": ["LlamaForCausalLM"]}, (0, 0, 0)),
    ],
    ids=str,
)
def test_which_layers_have_windows(tmp_path, changes, windows) -> None:
    mistral().config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text()) | {"architectures": ["MistralForCausalLM"]} | changes
    path.write_text(json.dumps(values))
    config = read_config(tmp_path)
    assert config.windows == windows
    assert config.window == (9 if all(windows) else 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 0}, "sliding_window: a positive integer"),
        (EXAONE | {"sliding_window_pattern": "LXG"}, "sliding_window_pattern: a positive integer"),
        (EXAONE | {"sliding_window_pattern": ""}, "sliding_window_pattern: a positive integer"),
        ({"layer_types": ["sliding_attention"]}, "layer_types: a list of 3"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types: 'chunked_attention' is not supported"),
    ],
    ids=str,
)
def test_windows_that_make_no_sense(tmp_path, changes, message) -> None:
    mistral().config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text()) | {"architectures": ["MistralForCausalLM"]} | changes
    path.write_text(json.dumps(values))
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


def test_pages_take_what_windows_and_a_step_need(windowed) -> None:
    """Not what the longest sequence would without a window: memory need not hold that."""
    given = {"model": windowed.directory, "model_name": "w", "device": "cpu", "threads": 1, "max_slots": 2}
    runner = load(WorkerSettings(**given, step_tokens=20, block_size=4))
    # Nine positions that are seen and twenty of a step, wherever the first block begins.
    assert runner.limits.window == WINDOW
    assert runner.limits.num_blocks == 2 * 9
    assert not runner.execute(full_step(runner.limits)).errors
    assert load(WorkerSettings(**given, step_tokens=20, block_size=4, max_model_len=9)).limits.window == 0


def test_prompts_longer_than_the_pool_beside_each_other(make, windowed) -> None:
    """Under the scheduler: blocks go from one to the other as windows move on, prefixes are shared."""
    limits = {"num_blocks": 14, "max_model_len": 128, "max_step_tokens": 16, "window": WINDOW}
    runner = make.runner(windowed.directory, **limits)
    loop = ClosedLoop(runner)
    prompts = [[(7 * place + 3 * first) % 97 for place in range(70)] for first in (1, 2, 1)]
    requests = [
        Request(str(number), array("i", prompt), max_tokens=20, sampling=make.greedy())
        for number, prompt in enumerate(prompts)
    ]
    groups = [loop.ask(request) for request in requests]
    while not loop.scheduler.idle:
        loop.step()
        loop.scheduler.check_integrity()
    for group, prompt in zip(groups, prompts, strict=True):
        (sequence,) = group.sequences
        assert sequence.tokens.tolist()[70:] == make.expected(windowed.model, prompt, 20)
