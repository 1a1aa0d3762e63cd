"""The worker on a GPU: what its CPU tests show, with device memory that is sized by profiling."""

import struct

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.load import load
from proto.sampling import greedy
from proto.worker_pb2 import NewSlot, Rows, StepPlan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")

PROMPT = [5, 17, 3, 88, 41, 41, 9, 60, 2, 73, 28]


def pack(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.2,
        eos_token_id=None,
        bos_token_id=None,
    )
    directory = tmp_path_factory.mktemp("model")
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(directory)
    return model.cuda(), directory


def run(runner, params, steps):
    """Two sequences: one in a chunk of its own, the other beside its decodes; the first one's tokens."""
    blocks = runner.limits.num_blocks - 1
    sequence = {"tokens": pack(*PROMPT), "prompt_length": len(PROMPT), "sampling": params}
    first = NewSlot(slot=1, block_ids=pack(blocks, 2, 5), **sequence)
    second = NewSlot(slot=0, block_ids=pack(7, 4, 9), **sequence)
    plans = [
        StepPlan(new_slots=[first], rows=Rows(slots=pack(1), starts=pack(0), counts=pack(11), samples=b"\1"))
    ]
    for step in range(1, steps):
        start, count = (0, 11) if step == 1 else (9 + step, 1)
        rows = Rows(slots=pack(0, 1), starts=pack(start, 10 + step), counts=pack(count, 1), samples=b"\1\1")
        plans.append(StepPlan(new_slots=[second] if step == 1 else [], rows=rows))
    tokens = []
    for number, plan in enumerate(plans, 1):
        plan.step = number
        result = runner.execute(plan)
        assert not result.errors
        tokens.append(struct.unpack("<i", result.tokens[-4:])[0])
    runner.reset()
    return tokens


def test_greedy_and_sampled_tokens(model) -> None:
    reference, directory = model
    cuda, cpu = (
        load(WorkerSettings(model=directory, device=device, dtype="float32", max_slots=4, threads=2))
        for device in ("cuda", "cpu")
    )
    assert cuda.limits.num_blocks > cpu.limits.num_blocks
    ids = torch.tensor([PROMPT], device="cuda")
    expected = reference.generate(ids, max_new_tokens=24, min_new_tokens=24, do_sample=False)[0, 11:].tolist()
    assert run(cuda, greedy(), 24) == expected
    sampled = greedy(temperature=1, top_p=0.9, top_k=40, repetition_penalty=1.1, seed=5, logprobs=2)
    assert run(cuda, sampled, 24) == run(cpu, sampled, 24)


def test_half_precision(model) -> None:
    runner = load(
        WorkerSettings(model=model[1], device="cuda", dtype="bfloat16", kv_memory=2**24, max_slots=4)
    )
    assert runner.dtype == torch.bfloat16
    assert len(run(runner, greedy(), 8)) == 8


@pytest.mark.parametrize("numbers", ["int8", "fp8"])
@pytest.mark.parametrize("what", ["kv_dtype", "quantization"])
def test_numbers_of_one_byte(model, what, numbers) -> None:
    """As plain PyTorch on the CPU: the first tokens, before rounding that is done in another order shows."""
    if numbers == "fp8" and torch.cuda.get_device_capability() < (8, 9) and what == "quantization":
        pytest.skip("this GPU multiplies no fp8")
    given = {"model": model[1], "dtype": "float32", "kv_memory": 2**24, "max_slots": 4, what: numbers}
    cuda = load(WorkerSettings(device="cuda", **given))
    cpu = load(WorkerSettings(device="cpu", kernels="torch", threads=2, **given))
    assert run(cuda, greedy(), 3) == run(cpu, greedy(), 3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_4_bits(model, dtype) -> None:
    """As plain PyTorch on the CPU, as far as rounding lets it."""
    given = {"model": model[1], "dtype": dtype, "kv_memory": 2**24, "max_slots": 4, "quantization": "int4"}
    cuda = load(WorkerSettings(device="cuda", **given))
    cpu = load(WorkerSettings(device="cpu", kernels="torch", threads=2, **given))
    steps = 3 if dtype == "float32" else 2
    assert run(cuda, greedy(), steps) == run(cpu, greedy(), steps)


def test_blocks_go_to_host_memory_and_come_back(model) -> None:
    """Without waiting in between: the copies are done in the order of the stream."""
    runner = load(
        WorkerSettings(model=model[1], device="cuda", kv_memory=2**24, host_memory=2**24, max_slots=4)
    )
    tensors = [tensor for cache in runner.caches for tensor in cache.tensors()]
    for tensor in tensors:
        tensor.copy_(torch.randint(-100, 100, tensor.shape))
    before = [tensor.clone() for tensor in tensors]
    away, slots = np.arange(40, dtype=np.int32), np.arange(40, dtype=np.int32)[::-1].copy()
    with torch.inference_mode():
        runner.host.swap_out(away, slots)
        for tensor in tensors:
            tensor[:40] = 0
        runner.host.swap_in(slots, away + 40)
    for tensor, old in zip(tensors, before, strict=True):
        assert tensor[40:80].equal(old[:40])
        assert tensor[80:].equal(old[80:])
    assert runner.host_offer.host_blocks == runner.host.slots > 40
    assert min(runner.host_offer.swap_block_us, runner.host_offer.token_us) > 0


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus(model) -> None:
    """The tokens of one; the ranks' sums are part of the graphs that are replayed."""
    found = []
    for count in (2, 1):
        ranks = {"tensor_parallel": count, "dtype": "float32", "kv_memory": 2**24}
        runner = load(WorkerSettings(model=model[1], device="cuda", max_slots=4, **ranks))
        assert runner.forward.recorded is not None
        params = {"top_p": 1, "repetition_penalty": 1, "seed": 5}
        found.append([run(runner, greedy(temperature=t, **params), 24) for t in (0, 1)])
        runner.close()
    assert found[0] == found[1]
