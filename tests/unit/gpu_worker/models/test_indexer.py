"""Sparse attention by an indexer: where its keys are kept, and what happens to sequences and pages.

That logits and tokens are transformers' shows `behaviour/test_families.py`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.memory.cache import make_caches
from gpu_worker.memory.host import HostPages
from gpu_worker.models.load import load_model
from gpu_worker.startup.calibration import head_scales
from gpu_worker.step.runner import Runner
from tests.support.logits import watch_logits
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, MODELS, PROMPT, random_model
from tests.unit.gpu_worker.conftest import CPU, Driver, make_limits, make_runner

LENGTH = len(PROMPT) + 20
SIZES = {"num_blocks": 40, "block_size": 3, "max_model_len": 96}


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLM 5, whose second layer has no indexer. 16 tokens are selected."""
    path: Path = tmp_path_factory.mktemp("sparse")
    random_model(*ALIKE["GLM 5"]).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def expected(directory: Path) -> list[int]:
    """An answer that was computed without interruption."""
    driver = Driver(make_runner(directory, ReferenceKernels(), **SIZES))
    sequence = driver.admit(0, PROMPT)
    driver.generate(sequence, 20)
    return sequence.tokens


def load(directory: Path, positions: int = 0) -> Any:
    return load_model(directory, CPU, ReferenceKernels(), max_positions=positions)


def test_only_longer_sequences_have_index_keys(directory: Path) -> None:
    for positions, index_pages in ((15, 0), (16, 0), (17, 2), (0, 2)):
        config = load(directory, positions).config
        assert [pages.rows for pages in config.pages[3:]] == [(32,)] * index_pages
        assert config.max_position == 128
        assert config.replayable == (index_pages == 0)  # a selection is no kernel


def test_short_sequences_answer_alike_without_indexers(directory: Path) -> None:
    """Up to 16 tokens, of which an indexer selects all."""
    found = []
    for positions in (16, 17):
        model = load(directory, positions)
        limits = make_limits(max_model_len=positions)
        form = ReferenceKernels().kv_format(AUTO, torch.float32)
        caches = make_caches(model.config, limits.num_blocks, limits.block_size, form, CPU)
        runner = Runner(model, caches, ReferenceKernels(), limits)
        seen = watch_logits(runner)
        driver = Driver(runner)
        driver.step((driver.admit(0, PROMPT[:16]), 16))
        found.append(torch.stack([seen[0, position] for position in range(16)]))
    assert found[0].equal(found[1])


def test_a_preempted_sequence_goes_on_the_same(directory: Path, expected: list[int]) -> None:
    """It is computed again in other chunks and other blocks, beside another sequence."""
    driver = Driver(make_runner(directory, ReferenceKernels(), **SIZES))
    sequence = driver.admit(0, PROMPT)
    driver.generate(sequence, 9)
    driver.release(sequence)
    again = driver.admit(1, sequence.tokens, prompt_length=len(PROMPT))
    other = driver.admit(2, PROMPT[::-1])
    driver.step((other, 5), (again, 6))
    while len(again.tokens) < LENGTH:
        driver.step((other, 1), (again, min(7, len(again.tokens) - again.computed)))
    assert again.tokens == expected


def test_index_keys_go_with_their_blocks(directory: Path, expected: list[int]) -> None:
    """To host memory, and back into other blocks."""
    runner = make_runner(directory, ReferenceKernels(), **SIZES)
    runner.host = HostPages(runner.caches, 20)
    driver = Driver(runner)
    sequence = driver.admit(0, PROMPT)
    driver.generate(sequence, 9)
    blocks, slots = np.array(sequence.blocks, np.int32), np.arange(len(sequence.blocks), dtype=np.int32)
    runner.host.swap_out(blocks, slots)
    for cache in runner.caches:
        cache.keys.fill_(torch.nan)
    elsewhere = np.array(driver.free[: len(blocks)], np.int32)
    runner.host.swap_in(slots, elsewhere)
    driver.release(sequence)
    again = driver.admit(1, sequence.tokens, prompt_length=len(PROMPT))
    driver.new[-1].block_ids = elsewhere.tobytes()
    again.blocks, again.computed = elsewhere.tolist(), sequence.computed
    driver.free = driver.free[len(blocks) :]
    driver.generate(again, LENGTH - len(again.tokens))
    assert again.tokens == expected


@pytest.mark.parametrize(("kv", "bound"), [("int8", 0.05), ("fp8", 0.2)])
def test_pages_of_one_byte(tmp_path: Path, kv: str, bound: float) -> None:
    """Index keys are rounded, too: logits are close, although selections differ where scores are close."""
    random_model(*MODELS["DeepSeek V3.2"]).save_pretrained(tmp_path)
    kernels, found = ReferenceKernels(), []
    for name in (AUTO, kv):
        model, limits = load(tmp_path), make_limits()
        form = kernels.kv_format(name, torch.float32)
        caches = make_caches(model.config, limits.num_blocks, limits.block_size, form, CPU)
        scales = head_scales(model, tmp_path, kernels, form, 64, CPU)
        assert len(scales) == (6 if name == "fp8" else 0)
        for cache, each in zip(caches, scales, strict=False):
            form.set_scales(cache, each)
        runner = Runner(model, caches, kernels, limits)
        seen = watch_logits(runner)
        driver = Driver(runner)
        driver.step((driver.admit(0, PROMPT), len(PROMPT)))
        found.append(torch.stack([seen[0, position] for position in range(len(PROMPT))]))
    exact, rounded = found
    off = (rounded - exact).norm(dim=1) / exact.norm(dim=1)
    assert off.median() < bound
