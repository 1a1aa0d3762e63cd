"""Settings, memory and what a worker says when it cannot start."""

import logging
from errno import ENOMEM

import pytest
import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from gpu_worker.errors import CapacityError, KernelError, ModelError, OutOfMemoryError
from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.kernels.sampling import DRAWS, FILTERS, PENALTIES, RARE_FILTERS
from gpu_worker.memory.cache import blocks_within, bytes_per_block
from gpu_worker.models.config import read_config
from gpu_worker.models.weights import Weights
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup import sizing
from gpu_worker.startup.load import load
from gpu_worker.startup.sizing import enough_memory, steps_within
from gpu_worker.startup.warmup import full_step
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.runner import Runner
from tests.support.adapters import write_adapter
from tests.unit.gpu_worker.conftest import Driver


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUIRE_KV_MEMORY", "much"),
        ("QUIRE_KV_MEMORY", "0"),
        ("QUIRE_BLOCK_SIZE", "0"),
        ("QUIRE_DEVICE", "tpu"),
        ("QUIRE_DTYPE", "int4"),
        ("QUIRE_KV_DTYPE", "int4"),
        ("QUIRE_QUANTIZATION", "int2"),
        ("QUIRE_THREADS", "-1"),
    ],
)
def test_a_bad_setting_is_named(monkeypatch, capsys, name, value) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        WorkerSettings.from_environment()
    assert f"{name}={value}" in capsys.readouterr().err


def test_a_draft_model_has_pages_of_its_own_in_every_block(settings, tiny) -> None:
    alone, with_draft = (
        load(settings(kv_memory="1MiB", draft_model=draft)) for draft in (None, tiny.directory)
    )
    assert with_draft.limits.num_blocks == alone.limits.num_blocks // 2
    assert len(with_draft.caches) == 2 * len(alone.caches)
    assert alone.drafter is None


def test_settings_from_the_environment(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("QUIRE_KV_MEMORY", "512MiB")
    monkeypatch.setenv("QUIRE_MODEL", str(tmp_path))
    settings = WorkerSettings.from_environment()
    assert settings.kv_memory == 512 * 2**20
    assert settings.served_name == tmp_path.name
    assert settings.thread_count >= 1


def test_pages_take_what_they_were_given(settings, tiny, caplog) -> None:
    caplog.set_level(logging.INFO)
    runner = load(settings(kv_memory=2**20))
    per_block = 2 * 2 * 2 * 8 * 4 * 16  # layers, keys and values, KV heads, head size, float32, tokens
    assert bytes_per_block(read_config(tiny.directory), 16, runner.caches[0].format) == per_block
    assert runner.limits.num_blocks == 2**20 // per_block
    assert runner.limits.max_model_len == 128
    assert len(caplog.messages) == 3


@pytest.mark.parametrize("kernels", ["torch", "portable", "auto"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pages_of_int8(settings, tiny, caplog, kernels, dtype) -> None:
    """More blocks in as much memory, and steps that work."""
    caplog.set_level(logging.INFO)
    runner = load(settings(kv_memory=2**20, kv_dtype="int8", kernels=kernels, dtype=dtype))
    per_block = 2 * 2 * 2 * (8 + 4) * 16  # layers, keys and values, KV heads, head size and scale, tokens
    assert bytes_per_block(read_config(tiny.directory), 16, runner.caches[0].format) == per_block
    assert runner.limits.num_blocks == 2**20 // per_block
    assert sum(tensor.nbytes for cache in runner.caches for tensor in cache.tensors()) <= 2**20
    assert {cache.keys.dtype for cache in runner.caches} == {torch.int8}
    assert runner.dtype == getattr(torch, dtype)
    assert "KV memory: int8" in caplog.text
    assert not runner.execute(full_step(runner.limits)).errors


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pages_of_fp8(settings, tiny, caplog, dtype) -> None:
    """Half of what bfloat16 takes, those of a draft model too, each head with a scale of its own."""
    caplog.set_level(logging.INFO)
    given = {"kv_dtype": "fp8", "kernels": "torch", "dtype": dtype, "draft_model": tiny.directory}
    runner = load(settings(kv_memory=2**20, **given))
    per_block = 2 * 2 * 2 * 2 * 8 * 16  # models, layers, keys and values, KV heads, head size, tokens
    assert runner.limits.num_blocks == 2**20 // per_block
    assert {cache.keys.dtype for cache in runner.caches} == {FP8}
    scales = torch.stack([torch.stack((cache.key_scales, cache.value_scales)) for cache in runner.caches])
    assert scales[:2].equal(scales[2:])  # the draft model is the same one
    assert (scales < 1).all()  # measured
    assert "KV memory: fp8" in caplog.text
    for cache in runner.caches:
        for pages in cache.tensors():
            pages.zero_()  # the step reads what it has not written
    assert not runner.execute(full_step(runner.limits)).errors


def test_triton_computes_with_pages_and_weights_of_fp8(settings) -> None:
    given = {"kv_dtype": "fp8", "quantization": "fp8", "max_model_len": 12, "kv_memory": 2**16}
    tokens = []
    for kernels in ("torch", "triton"):
        runner = load(settings(kernels=kernels, **given))
        driver = Driver(runner)
        tokens.append(driver.generate(driver.admit(0, [5, 17, 3]), 3))
    assert tokens[0] == tokens[1]


def test_pages_of_fp8_are_refused_where_nobody_computes_with_them(settings) -> None:
    with pytest.raises(KernelError, match=r"QUIRE_KV_DTYPE=fp8 .* QUIRE_KERNELS=torch"):
        load(settings(kv_dtype="fp8"))


def test_pages_take_no_more_than_all_slots_need(settings) -> None:
    assert load(settings()).limits.num_blocks == 4 * 128 // 16


def test_workers_that_share_a_device_share_its_memory(settings, monkeypatch) -> None:
    block = load(settings()).host.block_bytes
    monkeypatch.setattr(sizing, "free_memory", lambda device: 20 * block)
    assert load(settings()).limits.num_blocks == 20
    assert load(settings(memory_share=0.5)).limits.num_blocks == 10
    assert load(settings(memory_share=0.5, kv_memory=20 * block)).limits.num_blocks == 20


def test_too_little_memory_says_what_to_do(settings, monkeypatch) -> None:
    told = "QUIRE_KV_MEMORY or lower QUIRE_MAX_MODEL_LEN"
    with pytest.raises(CapacityError, match=told) as caught:
        load(settings(kv_memory=4096))
    assert not isinstance(caught.value, OutOfMemoryError), "no other process has a part of it"
    assert load(settings(kv_memory=4096 * 2, max_model_len=20)).limits.num_blocks == 2
    monkeypatch.setattr(sizing, "free_memory", lambda device: 4096)
    with pytest.raises(OutOfMemoryError, match=told):
        load(settings())
    with pytest.raises(CapacityError):
        blocks_within(100, 10, needed=11, useful=50)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("out of memory"), OSError(ENOMEM, "Cannot allocate memory")],
    ids=["allocator", "mapping"],
)
def test_weights_that_do_not_fit(settings, monkeypatch, error: Exception) -> None:
    def read(weights, name, *shape):
        raise error

    monkeypatch.setattr(Weights, "read", read)
    with pytest.raises(OutOfMemoryError, match="no memory on cpu for the weights"):
        load(settings())


def test_steps_that_do_not_fit_beside_the_pages() -> None:
    limits, told = BatchLimits(1, 16, 8, 100, 512, 97), "a step of 512 tokens in 8 slots: lower QUIRE"
    for error in (
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ):
        with (
            pytest.raises(OutOfMemoryError, match=told),
            enough_memory(torch.device("cuda"), steps_within(limits)),
        ):
            raise error
    with (
        pytest.raises(RuntimeError, match="illegal"),
        enough_memory(torch.device("cuda"), steps_within(limits)),
    ):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OutOfResources(146432, 101376, "shared memory"), "Required: 146432, .* .QUIRE_KERNELS=torch"),
        (CompilationError(None, None, "no such type"), "Triton: no such type .QUIRE_KERNELS=torch"),
        (RuntimeError("PassManager::run failed"), "run failed .QUIRE_KERNELS=torch"),
    ],
    ids=["shared memory", "types", "passes"],
)
def test_a_kernel_that_is_not_for_this_gpu_says_what_to_do(settings, monkeypatch, error, told) -> None:
    def raises(runner, message):
        raise error

    monkeypatch.setattr(Runner, "execute", raises)
    with pytest.raises(KernelError, match=told):
        load(settings(host_memory="1MiB"))


def test_what_else_goes_wrong_with_weights_is_not_called_a_lack_of_memory(settings, monkeypatch) -> None:
    def read(weights, name, *shape):
        raise RuntimeError("CUDA error: driver version is insufficient")

    monkeypatch.setattr(Weights, "read", read)
    with pytest.raises(RuntimeError, match="driver version"):
        load(settings())


def test_longer_than_the_model_was_made_for(settings) -> None:
    with pytest.raises(ModelError, match="QUIRE_MAX_MODEL_LEN=129"):
        load(settings(max_model_len=129))


@pytest.mark.parametrize("changes", [{}, {"max_slots": 3, "max_step_tokens": 50}, {"max_step_tokens": 1}])
def test_the_largest_step_is_a_valid_one(make, tiny, changes) -> None:
    runner = make.runner(tiny.directory, **changes)
    for pages in (page for cache in runner.caches for page in (cache.keys, cache.values)):
        pages.zero_()  # it reads what it has not written
    message = full_step(runner.limits)
    assert not runner.execute(message).errors
    assert int(runner.batch.known.max()) == runner.limits.max_model_len + 1
    assert sum(make.unpack(message.rows.counts)) == runner.limits.max_step_tokens
    used = runner.batch.sampling.state.flags[: len(message.new_slots)]
    assert (used == DRAWS | FILTERS | PENALTIES | RARE_FILTERS).all(), "whatever takes memory"
    assert all(new.sampling.rules.allowed_tokens for new in message.new_slots)


def test_adapters_beside_the_model(settings, tiny, tmp_path, caplog) -> None:
    """They take memory before the pages do, have fingerprints, and are in the largest step."""
    caplog.set_level(logging.INFO)
    for name in ("a", "b"):
        write_adapter(tmp_path / name, tiny.model, seed=ord(name), rank=32)
    modules = f"a={tmp_path / 'a'} b={tmp_path / 'b'}"
    runner = load(settings(kv_memory=2**20, lora_modules=modules))
    plain = load(settings(kv_memory=2**20))
    assert "LoRA adapters: 2, 0.3 MiB beside the weights" in caplog.text
    assert runner.limits.adapters == tuple(runner.adapters) == ("a", "b")
    assert runner.fingerprint == plain.fingerprint, "answers of the model alone are the same"
    assert len({runner.fingerprint, *runner.adapters.values()}) == 3
    step = full_step(runner.limits)
    assert {new.adapter for new in step.new_slots} == {"a", "b"}
    assert not runner.execute(step).errors
    again = load(settings(kv_memory=2**20, lora_modules=f"x={tmp_path / 'a'} b={tmp_path / 'b'}"))
    assert list(again.adapters.values()) == list(runner.adapters.values()), "a name changes nothing"
    write_adapter(tmp_path / "a", tiny.model, seed=9, rank=32)
    other = load(settings(kv_memory=2**20, lora_modules=modules))
    assert other.adapters["a"] != runner.adapters["a"]
    assert other.adapters["b"] == runner.adapters["b"]


def test_settings_of_adapters_are_checked(settings, tmp_path) -> None:
    with pytest.raises(ValueError, match="'a' is not NAME=DIRECTORY"):
        settings(lora_modules="a")
    with pytest.raises(ValueError, match="'tiny' is the name of the model"):
        settings(lora_modules=f"tiny={tmp_path}")
    with pytest.raises(ModelError, match="cannot be read"):
        load(settings(lora_modules=f"a={tmp_path}"))
