"""Several ranks compute the same results as one rank, for every family, and all ranks the same."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import CpuKernels, QuantizedKernels
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.checkpoint import open_checkpoint
from gpu_worker.models.config import read_config
from gpu_worker.models.load import load_model
from gpu_worker.models.split import Vocabulary, rank_config
from gpu_worker.models.weights import Weights
from tests.support.logits import watch_logits
from tests.support.ranks import Meeting, Thread, Together, same
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, MODELS, PROMPT, random_model
from tests.unit.gpu_worker.conftest import Driver, greedy, make_runner, sampled

MODELS = {
    **MODELS,
    **ALIKE,
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
    ("DeepSeek V3.2", 2),
    ("Qwen2 MoE", 2),
    ("BLOOM", 2),
    ("Phi", 2),
    ("Falcon", 2),
    ("Falcon, two norms", 2),
    ("Qwen3.5", 2),
    ("Qwen3 Next", 2),
    ("LFM2", 2),
    ("Kimi Linear", 2),
    ("Ling 3", 2),
    ("Nemotron H", 2),
    ("Nemotron 3", 2),
    ("Nemotron 3, latent experts", 2),
    ("Granite 4 H, experts", 2),
    ("Falcon H1", 2),
]
LENGTH = len(PROMPT) + 64


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Make a random model."""

    def make(name: str) -> Any:
        path = tmp_path_factory.mktemp("split")
        random_model(*MODELS[name]).save_pretrained(path)
        return path

    return make


def drawn(slot: int) -> dict[str, Any]:
    """Sampling parameters of three sequences: one greedy, two drawn."""
    params = (greedy(), sampled(seed=5), sampled(seed=6, top_p=0.9, frequency_penalty=0.5))
    return {"sampling": params[slot], "sequence_index": slot, "prompt_length": len(PROMPT) - slot}


def generated(runner: Any) -> list[list[int]]:
    """Tokens of three sequences on one rank, in mixed batches."""
    driver = Driver(runner)
    sequences = [driver.admit(slot, PROMPT[slot:], **drawn(slot)) for slot in range(3)]
    driver.mixed_steps(sequences, LENGTH)
    assert len(set(sequences[0].tokens[len(PROMPT) :])) > 4, "a model that repeats itself shows little"
    return [each.tokens for each in sequences]


def continued(runner: Any, texts: list[list[int]]) -> list[list[int]]:
    """The same sequences, prefilled in chunks beside each other; their last tokens are sampled again."""
    driver = Driver(runner)
    sequences = [driver.admit(slot, text[:-5], **drawn(slot)) for slot, text in enumerate(texts)]
    for chunk in (1, 31, 7, LENGTH):
        driver.step(*((each, min(chunk + each.slot, LENGTH - 5 - each.computed)) for each in sequences))
    for _ in range(4):
        driver.step(*((each, 1) for each in sequences))
    return [each.tokens for each in sequences]


def stacked(seen: dict[tuple[int, int], torch.Tensor]) -> torch.Tensor:
    """Logits of all tokens except the last, which is not computed."""
    return torch.stack([seen[slot, at] for slot in range(3) for at in range(LENGTH - 1)])


@pytest.mark.parametrize("number", range(len(SPLIT)), ids=[f"{name}, {count}" for name, count in SPLIT])
def test_ranks_equal_one(directory: Any, number: int) -> None:
    name, count = SPLIT[number]
    path, sizes = directory(name), {"num_blocks": 96, "max_model_len": 96, "max_step_tokens": 256}
    kernels = [ReferenceKernels(), CpuKernels(library.load(build.supported()[0], 1))][number % 2]
    alone = make_runner(path, kernels, **sizes)
    expected = watch_logits(alone)
    texts = generated(alone)
    ranks = Together(count, lambda ranks: make_runner(path, kernels, ranks=ranks, **sizes))
    seen = [watch_logits(runner) for runner in ranks.runners]
    assert continued(ranks, texts) == texts
    logits = [stacked(each) for each in seen]
    assert same(logits)
    torch.testing.assert_close(logits[0], stacked(expected), atol=5e-5, rtol=5e-5)
    greedy_part = logits[0][len(PROMPT) - 1 : LENGTH - 1]
    assert greedy_part.argmax(-1).tolist() == texts[0][len(PROMPT) :]
    heads = {runner.pages[0].keys.shape[1] for runner in ranks.runners}
    assert heads == {max(1, alone.pages[0].keys.shape[1] // count)}


def test_ranks_with_weights_of_int8(directory: Any) -> None:
    """Close to one rank's results: each rank quantizes its activations by itself."""
    path, sizes = directory("Llama"), {"num_blocks": 96, "max_model_len": 96, "max_step_tokens": 256}
    kernels = QuantizedKernels(library.load(build.supported()[0], 1))
    alone = make_runner(path, kernels, **sizes)
    ranks = Together(2, lambda ranks: make_runner(path, kernels, ranks=ranks, **sizes))
    seen = [watch_logits(runner) for runner in (alone, *ranks.runners)]
    for runner in (alone, ranks):
        driver = Driver(runner)
        driver.step((driver.admit(0, PROMPT), len(PROMPT)))
    expected, *found = (torch.stack([of[0, at] for at in range(len(PROMPT))]) for of in seen)
    assert same(found)
    assert (found[0] - expected).norm() < 0.05 * expected.norm()


def test_a_rank_holds_its_part_alone(directory: Any) -> None:
    """Everything except norms is split; a bias of a summed product is on one rank."""
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


def test_a_rank_may_have_no_token(tmp_path: Any) -> None:
    """Of 9 tokens five ranks of eight have two each, or one: the last one twice, as the others do."""
    table = torch.randn(9, 4)
    save_file({"table": table}, tmp_path / "model.safetensors")
    parts = []
    for rank in range(8):
        ranks = Thread(rank, 8, Meeting(8))
        with open_checkpoint(tmp_path) as checkpoint:
            weights = Weights(checkpoint, torch.float32, torch.device("cpu"), ranks=ranks)
            parts.append(Vocabulary(9, ranks).read(weights, "table", 4))
    assert torch.cat(parts).equal(torch.cat((table, table[8:].expand(7, 4))))


def test_what_cannot_be_split_is_refused(directory: Any) -> None:
    llama = read_config(directory("Llama"))
    with pytest.raises(ModelError, match="QUIRE_TENSOR_PARALLEL=3 does not divide 4 attention heads"):
        rank_config(llama, 3)
    with pytest.raises(ModelError, match="QUIRE_TENSOR_PARALLEL=3 does not divide 2 key heads"):
        rank_config(replace(llama, num_heads=6), 3)
    qwen = replace(read_config(directory("Qwen3.5")), num_heads=6, num_kv_heads=3)
    with pytest.raises(ModelError, match="=3: the recurrent layers cannot be split"):
        rank_config(replace(qwen, intermediate_size=48), 3)
    with pytest.raises(ModelError, match="=2 does not divide 49 intermediate dimensions of the MLP"):
        rank_config(replace(llama, intermediate_size=49), 2)
    mixture = read_config(directory("Mixtral"))
    assert mixture.experts is not None
    with pytest.raises(ModelError, match="=2 does not divide 3 intermediate dimensions of an expert"):
        rank_config(replace(mixture, experts=replace(mixture.experts, intermediate_size=3)), 2)
    with pytest.raises(ModelError, match="=4: FalconForCausalLM has 2 key heads"):
        rank_config(read_config(directory("Falcon, two norms")), 4)
    with pytest.raises(ModelError, match="=2: Olmo2ForCausalLM has norms over all heads"):
        rank_config(read_config(directory("OLMo 2")), 2)
    with pytest.raises(ModelError, match="=2: OlmoHybridForCausalLM has norms over all heads"):
        rank_config(read_config(directory("OLMo Hybrid")), 2)
