"""From settings to a runner: device, weights, KV memory."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from gpu_worker.batch import BatchLimits
from gpu_worker.cache import (
    GPU_SHARE,
    HOST_SHARE,
    available,
    blocks_within,
    bytes_per_block,
    free_memory,
    make_caches,
)
from gpu_worker.calibration import head_scales
from gpu_worker.drafter import Drafter, load_draft
from gpu_worker.errors import CapacityError, KernelError, ModelError, WorkerError
from gpu_worker.followers import Followers
from gpu_worker.group import own_cores
from gpu_worker.host import HostPages
from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import CpuKernels, MatrixUnitKernels, QuantizedKernels
from gpu_worker.kernels.cpu.memory import populate
from gpu_worker.kernels.interface import FP8, Kernels, LayerCache
from gpu_worker.kernels.reference import ReferenceKernels
from gpu_worker.kernels.reference_quantized import QuantizedReference
from gpu_worker.models.registry import CausalLM, check_split, load_model
from gpu_worker.models.split import ALONE, Ranks
from gpu_worker.runner import Runner
from gpu_worker.settings import WorkerSettings
from gpu_worker.warmup import full_step, host_offer
from ops.hub import fetched

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a runner is made of, but for its memory."""

    model: CausalLM
    draft: CausalLM | None
    kernels: Kernels
    kv_dtype: torch.dtype
    device: torch.device
    ranks: Ranks

    def block_bytes(self, size: int) -> int:
        """Memory of one block of `size` tokens, of both models, on all ranks."""
        models = (self.model, self.draft) if self.draft else (self.model,)
        return self.ranks.count * sum(bytes_per_block(each.config, size, self.kv_dtype) for each in models)

    def runner(self, limits: BatchLimits) -> Runner:
        """With pages for as many blocks as the limits say."""
        drafter = Drafter(self.draft, self._pages(self.draft, limits), self.kernels) if self.draft else None
        return Runner(self.model, self._pages(self.model, limits), self.kernels, limits, drafter)

    def _pages(self, model: CausalLM, limits: BatchLimits) -> list[LayerCache]:
        return make_caches(model.config, limits.num_blocks, limits.block_size, self.kv_dtype, self.device)


BYTES = {"int8": torch.int8, "fp8": FP8}
"""What numbers of one byte are called in settings."""

_BESIDE = {MatrixUnitKernels: " with oneDNN", QuantizedKernels: " with weights in int8"}
"""What the log adds about a back end."""


def load(settings: WorkerSettings, around: Callable[[Kernels], Kernels] = lambda kernels: kernels) -> Runner:
    """Load the model and set up its memory. Raises `ModelError`, `CapacityError` and `HubError`.

    Of several ranks this is the first: the others load their shares, too, and follow the runner until it is
    closed.

    `around`: what is to stand between the runner and its back end, when something is measured.
    """
    settings = _with_directories(settings)
    count, device = settings.tensor_parallel, device_of(settings)
    if count == 1:
        return load_rank(settings, ALONE, around)
    for model in (settings.model, settings.draft_model):
        if model is not None:
            check_split(model, count)
    settings = settings.model_copy(update={"threads": max(1, settings.thread_count // count)})
    followers = Followers(settings, device)
    try:
        runner = load_rank(settings, followers.group, around)
    except WorkerError:
        followers.close()
        raise
    except Exception as error:
        followers.abandon(error)
        raise
    runner.followers = followers
    return runner


def load_rank(
    settings: WorkerSettings, ranks: Ranks, around: Callable[[Kernels], Kernels] = lambda kernels: kernels
) -> Runner:
    """As `load`, this rank alone; all ranks of a worker do it at the same time."""
    device = device_of(settings)
    threads = settings.thread_count
    torch.set_num_threads(threads)
    with own_cores(ranks.rank, ranks.count, threads):
        kernels = around(_kernels(settings, device))
    model = load_model(
        settings.model, device, kernels, _dtype(settings, device), settings.max_model_len, ranks
    )
    kv_dtype = BYTES.get(settings.kv_dtype, model.dtype)
    parts = Parts(model, _draft(settings, model, kernels, device, ranks), kernels, kv_dtype, device, ranks)
    scales = _head_scales(settings, parts) if kv_dtype == FP8 else []
    limits = _limits(settings, parts)
    runner = parts.runner(limits)
    for cache, worth in zip(runner.caches, scales, strict=False):
        assert cache.head_scales is not None
        cache.head_scales.copy_(worth)
    block_bytes = parts.block_bytes(limits.block_size)
    log.info(
        "KV memory: %s, %d blocks of %d tokens, %.0f MiB, %.1f KiB a token; "
        "%d slots, sequences up to %d tokens, steps up to %d",
        str(kv_dtype).removeprefix("torch."),
        limits.num_blocks,
        limits.block_size,
        limits.num_blocks * block_bytes / 2**20,
        block_bytes / limits.block_size / 2**10,
        limits.max_slots,
        limits.max_model_len,
        limits.max_step_tokens,
    )
    _add_host_memory(settings, runner, ranks)
    if device.type == "cuda":
        _record(runner)
    return runner


def _with_directories(settings: WorkerSettings) -> WorkerSettings:
    """The same, with models that were named by id fetched. Raises `HubError`."""
    draft = settings.draft_model
    return settings.model_copy(
        update={
            "model": fetched(settings.model, log.info),
            "draft_model": fetched(draft, log.info) if draft else None,
        }
    )


def _head_scales(settings: WorkerSettings, parts: Parts) -> list[torch.Tensor]:
    """What fp8 is worth in each layer, those of the draft model after the model's own."""
    models = [(parts.model, settings.model)]
    if parts.draft is not None and settings.draft_model is not None:
        models.append((parts.draft, settings.draft_model))
    longest = settings.max_model_len or parts.model.config.max_position
    return [
        worth
        for model, directory in models
        for worth in head_scales(model, directory, parts.kernels, longest, parts.device, parts.ranks)
    ]


def _record(runner: Runner) -> None:
    """Replay the runner's decodes, if its back end's launches are the same for all steps of one size.

    A mixture of experts is not replayed: how many tokens an expert gets follows from what the router says.
    """
    kernels = runner.kernels
    if runner.model.config.replayable and isinstance(kernels, ReferenceKernels) and kernels.replayable:
        from gpu_worker.kernels.triton.graphs import DecodeGraphs, recorder

        graphs = DecodeGraphs(runner.forward, runner.limits, runner.device, recorder())
        graphs.prepare()
        runner.replayed = graphs


def _add_host_memory(settings: WorkerSettings, runner: Runner, ranks: Ranks) -> None:
    """Give the runner as many slots of host memory as were asked for. Raises `CapacityError`."""
    size = runner.host.block_bytes * ranks.count
    if settings.host_memory is None:
        memory = int(available() * HOST_SHARE) if runner.device.type == "cuda" else 0
    else:
        memory, free = int(settings.host_memory), available()
        if not (memory == 0 or size <= memory <= free):
            raise CapacityError(
                f"QUIRE_HOST_MEMORY is {memory / 2**20:.0f} MiB: a block takes {size / 2**20:.2f} MiB, "
                f"and {free / 2**20:.0f} MiB are free"
            )
    if blocks := ranks.least(memory // size):
        runner.host = HostPages(runner.caches, blocks)
        runner.host_offer = offer = host_offer(runner)
        log.info(
            "host memory: %d blocks, %.0f MiB; %.0f us to move one, %.0f us to compute a token",
            blocks,
            blocks * size / 2**20,
            offer.swap_block_us,
            offer.token_us,
        )


def device_of(settings: WorkerSettings) -> torch.device:
    """Where the model runs: of several GPUs, the one that this process has chosen. Raises `CapacityError`."""
    if settings.device == "cpu" or not torch.cuda.is_available():
        if settings.device == "cuda":
            raise CapacityError("QUIRE_DEVICE=cuda: PyTorch finds no GPU here")
        return torch.device("cpu")
    count, found = settings.tensor_parallel, torch.cuda.device_count()
    if found < count:
        raise CapacityError(f"QUIRE_TENSOR_PARALLEL={count}: of so many GPUs PyTorch finds {found} here")
    return torch.device("cuda")


def populate_memory(runner: Runner) -> None:
    """Have the system find a CPU's pages and host memory before they are written to."""
    if runner.device.type == "cpu":
        populate([tensor for cache in runner.caches for tensor in cache.tensors()])
        runner.host.populate()


def _dtype(settings: WorkerSettings, device: torch.device) -> torch.dtype | None:
    """None: the checkpoint's."""
    if settings.dtype == "auto":
        return torch.float32 if device.type == "cpu" else None
    dtype: torch.dtype = getattr(torch, settings.dtype)
    return dtype


def _kernels(settings: WorkerSettings, device: torch.device) -> Kernels:
    """The back end. Raises `KernelError` if one was asked for that cannot be had."""
    if (device.type == "cuda" and settings.kernels == "auto") or settings.kernels == "triton":
        return _triton(settings, device)
    if device.type != "cpu" or settings.kernels == "torch" or settings.dtype == "float16":
        return _reference(settings)
    kind = _kind(settings)
    try:
        name = build.supported()[0] if settings.kernels in ("auto", "onednn") else settings.kernels
        threads = settings.thread_count
        kernels = kind(library.load(name, threads), library.cores(threads))
    except KernelError as error:
        if settings.kernels != "auto":
            raise
        log.warning("%s: PyTorch computes instead, more slowly", error)
        return _reference(settings)
    log.info("kernels: C++ for %s%s, %d threads", name, _BESIDE.get(kind, ""), threads)
    return kernels


def _triton(settings: WorkerSettings, device: torch.device) -> Kernels:
    """The back end for GPUs; PyTorch if Triton cannot be had, and neither it nor weights of one byte, which
    PyTorch would widen in every step, were asked for."""
    try:
        from gpu_worker.kernels.triton.kernels import TritonKernels
        from gpu_worker.kernels.triton.quantized import QuantizedTriton

        if settings.quantization == "none":
            return TritonKernels(device)
        return QuantizedTriton(device, BYTES[settings.quantization])
    except (ImportError, KernelError) as error:
        if settings.kernels == "triton":
            raise KernelError(f"QUIRE_KERNELS=triton: {error}") from error
        if settings.quantization != "none":
            raise KernelError(f"QUIRE_QUANTIZATION={settings.quantization}: {error}") from error
        log.warning("%s: PyTorch computes instead, more slowly", error)
        return ReferenceKernels()


def _reference(settings: WorkerSettings) -> ReferenceKernels:
    if settings.quantization == "none":
        return ReferenceKernels()
    return QuantizedReference(BYTES[settings.quantization])


def _kind(settings: WorkerSettings) -> type[CpuKernels]:
    """Which products the C++ back end has. Raises `KernelError` for what it has not."""
    for name, value in (("QUIRE_KV_DTYPE", settings.kv_dtype), ("QUIRE_QUANTIZATION", settings.quantization)):
        if value == "fp8":
            raise KernelError(f"{name}=fp8 is for GPUs: on a CPU take int8, or QUIRE_KERNELS=torch")
    if settings.quantization == "int8":
        if settings.kernels == "onednn":
            raise KernelError("QUIRE_QUANTIZATION=int8 has products of its own, without QUIRE_KERNELS=onednn")
        return QuantizedKernels
    units = settings.kernels == "auto" and settings.dtype == "bfloat16" and build.has_amx()
    return MatrixUnitKernels if units or settings.kernels == "onednn" else CpuKernels


def _draft(
    settings: WorkerSettings, model: CausalLM, kernels: Kernels, device: torch.device, ranks: Ranks
) -> CausalLM | None:
    """The draft model, if one was asked for."""
    if settings.draft_model is None:
        return None
    longest = settings.max_model_len or model.config.max_position
    return load_draft(settings.draft_model, settings.model, model, kernels, device, longest, ranks)


def _limits(settings: WorkerSettings, parts: Parts) -> BatchLimits:
    """What the batch can hold, with as many blocks as there is memory for."""
    config, size = parts.model.config, settings.block_size
    longest = settings.max_model_len or config.max_position
    if longest > config.max_position:
        raise ModelError(
            f"QUIRE_MAX_MODEL_LEN={longest}: the model was made for {config.max_position} tokens at most"
        )
    window = config.window if config.window < longest else 0
    limits = BatchLimits(
        1,
        size,
        settings.max_slots,
        longest,
        settings.step_tokens,
        config.vocab_size,
        window,
        config.hidden_size,
    )
    needed = limits.blocks_at_once
    limits = replace(limits, num_blocks=needed)
    if settings.kv_memory is not None:
        memory, useful = int(settings.kv_memory), 1 << 31
    elif parts.device.type == "cuda":
        memory, useful = _left_on_gpu(parts, limits) * parts.ranks.count, 1 << 31
    else:
        memory, useful = free_memory(parts.device), settings.max_slots * needed
    blocks = blocks_within(memory, parts.block_bytes(size), needed, useful)
    return replace(limits, num_blocks=parts.ranks.least(blocks))


def _left_on_gpu(parts: Parts, limits: BatchLimits) -> int:
    """Bytes that a rank's pages may take: what a step of the largest size leaves free, less a margin."""
    device = parts.device
    runner = parts.runner(limits)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        runner.execute(full_step(limits))
        torch.cuda.synchronize(device)
    except torch.OutOfMemoryError as error:
        raise CapacityError(
            f"no memory on {device} beside the weights for a step of {limits.max_step_tokens} tokens in "
            f"{limits.max_slots} slots: lower QUIRE_STEP_TOKENS, QUIRE_MAX_SLOTS or QUIRE_MAX_MODEL_LEN"
        ) from error
    activations = torch.cuda.max_memory_allocated(device) - before
    del runner
    torch.cuda.empty_cache()
    return int((free_memory(device) - activations) * GPU_SHARE)
