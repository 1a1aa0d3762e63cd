"""Scales of fp8 pages: a checkpoint's own, or measured; and what is computed with them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError, OutOfMemoryError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.kv_scales import stored_scales
from gpu_worker.models.load import load_model
from gpu_worker.models.ranks import Alone
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup import calibration
from gpu_worker.startup.calibration import head_scales, power_of_two
from gpu_worker.startup.load import load
from tests.unit.gpu_worker.behaviour.test_families import random_model
from tests.unit.gpu_worker.conftest import Driver
from tests.unit.gpu_worker.models.test_transformers_model import MIXTURES

CPU = torch.device("cpu")


def test_powers_of_two() -> None:
    numbers = torch.tensor([0.3, 0.5, 1.0, 447.0, 1e-40, 0.0, torch.inf, torch.nan])
    scales = power_of_two(numbers)
    assert scales[:4].tolist() == [0.5, 1.0, 2.0, 512.0]
    assert numbers[4] < scales[4] <= 2 * numbers[4]
    assert scales[5:].tolist() == [1.0, 1.0, 1.0]


def measured(directory, kernels, dtype=torch.float32):
    model = load_model(directory, CPU, kernels, dtype)
    return torch.stack(head_scales(model, directory, kernels, kernels.kv_format("fp8", dtype), 128, CPU))


def test_both_types_find_the_same(tiny) -> None:
    found = measured(tiny.directory, ReferenceKernels())
    assert found.shape == (2, 2, 2)
    assert found.log2().frac().eq(0).all()
    assert found.equal(measured(tiny.directory, ReferenceKernels(), torch.bfloat16))


def test_a_gpu_that_has_no_memory_for_the_prompt(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(calibration, "Runner", refuse)
    told = "no memory on cpu beside weights for a prompt of 128 tokens, which scales are measured with"
    with pytest.raises(OutOfMemoryError, match=told):
        measured(tiny.directory, ReferenceKernels())


def test_layers_may_differ_in_their_heads(tmp_path) -> None:
    random_model(*MIXTURES["Gemma 4 MoE, keys as values"]).save_pretrained(tmp_path)
    kernels = ReferenceKernels()
    model = load_model(tmp_path, CPU, kernels, torch.float32)
    scales = head_scales(model, tmp_path, kernels, kernels.kv_format("fp8", torch.float32), 128, CPU)
    assert [each.shape for each in scales] == [(2, pages.heads) for pages in model.config.pages]
    assert len({pages.heads for pages in model.config.pages}) == 2


def test_formats_whose_scales_are_not_of_heads_need_none(tiny) -> None:
    kernels = ReferenceKernels()
    model = load_model(tiny.directory, CPU, kernels, torch.float32)
    for name in ("auto", "int8"):
        kv = kernels.kv_format(name, torch.float32)
        assert head_scales(model, tiny.directory, kernels, kv, 128, CPU) == []


def test_a_head_has_room_for_twice_of_what_was_seen(saved) -> None:
    """Weights of one head, made larger, show in its scale alone."""
    made = saved()
    before = measured(made.directory, ReferenceKernels())
    tensors = load_file(made.directory / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.weight"
    tensors[name][8:] *= 64
    save_file(tensors, made.directory / "model.safetensors")
    after = measured(made.directory, ReferenceKernels())
    assert (after / before).flatten().tolist() == [1, 1, 1, 1, 1, 1, 1, 64]


def add(directory, names: dict[str, torch.Tensor]) -> None:
    file = directory / "model.safetensors"
    save_file({**load_file(file), **names}, file)


@pytest.mark.parametrize(
    "names",
    [
        ("self_attn.k_scale", "self_attn.v_scale"),
        ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
        ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
        ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
    ],
)
def test_scales_of_the_checkpoint(saved, names) -> None:
    directory = saved().directory
    assert stored_scales(directory, 2, 2) is None
    scales = torch.tensor([0.01, 0.02, 0.03, 0.04])
    places = [f"model.layers.{layer}.{name}" for layer in range(2) for name in names]
    add(directory, {name: scale.view(1) for name, scale in zip(places, scales, strict=True)})
    add(directory, {places[0]: torch.tensor([[0.05], [0.06]])})
    config = json.loads((directory / "config.json").read_text())
    config["quantization_config"] = {"config_groups": {}, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    (directory / "config.json").write_text(json.dumps(config))
    found = stored_scales(directory, 2, 2)
    expected = torch.tensor([[[0.05, 0.06], [0.02, 0.02]], [[0.03, 0.03], [0.04, 0.04]]])
    assert found is not None
    assert found.equal(expected)
    for rank in (0, 1):
        of_rank = stored_scales(directory, 2, 1, Alone(rank, 2))
        assert of_rank is not None
        assert of_rank.equal(expected[..., rank : rank + 1])
    runner = load(WorkerSettings(model=directory, kv_dtype="fp8", kernels="torch", device="cpu", threads=1))
    scales = [torch.stack((cache.key_scales, cache.value_scales)) for cache in runner.caches]
    assert torch.stack(scales).equal(expected)


@pytest.mark.parametrize("wrong", [torch.tensor(0.0), torch.tensor(torch.nan), torch.ones(3)])
def test_scales_that_are_none(saved, wrong) -> None:
    directory = saved().directory
    add(directory, {"model.layers.0.self_attn.k_scale": wrong})
    with pytest.raises(ModelError, match=r"0\.self_attn\.k_scale: a positive scale is needed"):
        stored_scales(directory, 2, 2)
    add(directory, {"model.layers.0.self_attn.k_scale": torch.tensor(1.0)})
    with pytest.raises(ModelError, match="none of layer 0's v"):
        stored_scales(directory, 2, 2)


def test_a_sequence_that_comes_back_goes_on_as_it_began(tiny) -> None:
    """In chunks, at once, in other blocks: the same bytes in the pages and the same tokens."""
    given = {"kv_dtype": "fp8", "kernels": "torch", "device": "cpu", "threads": 1, "max_slots": 2}
    runner = load(WorkerSettings(model=tiny.directory, kv_memory=2**20, **given))
    prompt = [5, 17, 3, 88, 41, 41, 9, 60, 2, 73, 28, 50, 51, 52, 53, 54, 55, 56, 57, 58]
    driver = Driver(runner)
    answer = driver.generate(driver.admit(0, prompt), 8)
    runner.reset()
    driver = Driver(runner, seed=1)
    assert driver.generate(driver.admit(1, prompt), 8, chunk=7) == answer
    runner.reset()
    driver = Driver(runner, seed=2)
    assert driver.generate(driver.admit(1, prompt + answer[:5]), 3) == answer[5:]
