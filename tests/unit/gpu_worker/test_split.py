"""Several ranks compute what one does, of every family, and all of them the same."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from gpu_worker.errors import ModelError
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import CpuKernels
from gpu_worker.kernels.reference import ReferenceKernels
from gpu_worker.models.config import read_config
from gpu_worker.models.registry import load_model
from gpu_worker.models.split import share_of
from tests.support.logits import watch_logits
from tests.support.ranks import Meeting, Thread, Together, same
from tests.unit.gpu_worker.conftest import Driver, greedy, make_runner, sampled
from tests.unit.gpu_worker.test_families import MODELS, PROMPT, random_model

MODELS = {
    **MODELS,
    "one key head": ("LlamaForCausalLM", {"num_key_value_heads": 1, "seed": 1}),
    "biases": ("LlamaForCausalLM", {"attention_bias": True, "mlp_bias": True}),
}
SPLIT = [
    ("Llama", 2),
    ("Llama", 4),
    ("one key head", 2),
    ("biases", 2),
    ("Phi-3", 2),
    ("Gemma 2", 2),
    ("Qwen3", 4),
    ("GPT-2", 2),
    ("GPT-NeoX", 2),
    ("Mixtral", 2),
    ("DeepSeek V2, groups, YaRN", 4),
    ("DeepSeek V3, YaRN", 2),
]
LENGTH = len(PROMPT) + 64


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a random model."""

    def make(name: str) -> Any:
        path = tmp_path_factory.mktemp("split")
        random_model(*MODELS[name]).save_pretrained(path)
        return path

    return make


def served(runner: Any, watched: list[Any]) -> tuple[list[list[int]], list[Any]]:
    """Tokens of three sequences in mixed batches, one greedy and two drawn, and each runner's logits."""
    seen = [watch_logits(each) for each in watched]
    driver = Driver(runner)
    sampling = [greedy(), sampled(seed=5), sampled(seed=6, top_p=0.9, frequency_penalty=0.5)]
    sequences = [
        driver.admit(slot, PROMPT[slot:], sampling=params, sequence_index=slot)
        for slot, params in enumerate(sampling)
    ]
    driver.mixed_steps(sequences, LENGTH)
    assert len(set(sequences[0].tokens[len(PROMPT) :])) > 4, "a model that repeats itself shows little"
    known = [(each.slot, position) for each in sequences for position in range(each.computed)]
    return [each.tokens for each in sequences], [torch.stack([of[at] for at in known]) for of in seen]


@pytest.mark.parametrize("number", range(len(SPLIT)), ids=[f"{name}, {count}" for name, count in SPLIT])
def test_ranks_equal_one(directory: Any, number: int) -> None:
    name, count = SPLIT[number]
    path, sizes = directory(name), {"num_blocks": 96, "max_model_len": 96}
    kernels = [ReferenceKernels(), CpuKernels(library.load(build.supported()[0], 2))][number % 2]
    alone = make_runner(path, kernels, **sizes)
    expected, (whole,) = served(alone, [alone])
    ranks = Together(count, lambda ranks: make_runner(path, kernels, ranks=ranks, **sizes))
    tokens, logits = served(ranks, ranks.runners)
    assert tokens == expected
    assert same(logits)
    torch.testing.assert_close(logits[0], whole, atol=5e-5, rtol=5e-5)
    assert {runner.caches[0].keys.shape[1] for runner in ranks.runners} == {
        max(1, alone.caches[0].keys.shape[1] // count)
    }


def test_a_rank_holds_its_part_alone(directory: Any) -> None:
    """Of everything but norms; biases of what is added up are on one rank."""
    given: list[int] = []

    class Counting(ReferenceKernels):
        def linear(self, weight, bias=None, **options):
            given.append(weight.numel())
            return super().linear(weight, bias, **options)

        def gated(self, weight, bias=None, activation="silu"):
            given.append(weight.numel())
            return super().gated(weight, bias, activation)

    path = directory("Llama")
    sizes = []
    for count in (1, 2):
        given.clear()
        load_model(path, torch.device("cpu"), Counting(), ranks=Thread(count - 1, count, Meeting(count)))
        sizes.append(list(given))
    assert [2 * size for size in sizes[1]] == [49 * 2 * 32 if size == 97 * 32 else size for size in sizes[0]]


def test_what_cannot_be_split_is_refused(directory: Any) -> None:
    llama = read_config(directory("Llama"))
    with pytest.raises(ModelError, match="QUIRE_TENSOR_PARALLEL=3 does not divide 4 attention heads"):
        share_of(llama, 3)
    with pytest.raises(ModelError, match="QUIRE_TENSOR_PARALLEL=3 does not divide 2 key heads"):
        share_of(replace(llama, num_heads=6), 3)
    with pytest.raises(ModelError, match="=2 does not divide 49 numbers inside a feed-forward block"):
        share_of(replace(llama, intermediate_size=49), 2)
    mixture = read_config(directory("Mixtral"))
    assert mixture.experts is not None
    with pytest.raises(ModelError, match="=2 does not divide 3 numbers inside an expert"):
        share_of(replace(mixture, experts=replace(mixture.experts, size=3)), 2)
    with pytest.raises(ModelError, match="=2: Olmo2ForCausalLM has norms over all heads"):
        share_of(read_config(directory("OLMo 2")), 2)
