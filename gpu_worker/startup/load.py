"""From settings to a runner: weights, KV memory, host memory, CUDA graphs and the other ranks."""

import logging
from collections.abc import Callable

import torch

from gpu_worker.errors import ModelError, WorkerError
from gpu_worker.kernels.interface import Kernels
from gpu_worker.machine.huge_pages import populate
from gpu_worker.models.adapters.adapters import AdapterFiles
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.load import Beside, check_split, load_model
from gpu_worker.models.predictor import Predictor
from gpu_worker.models.projection import load_projection
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.ranks.group import own_cores
from gpu_worker.ranks.processes import RankProcesses
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.backend import (
    PLAIN,
    compiling,
    device_of,
    dtype_of,
    kernels_of,
    plain_kernels,
    with_dtype,
)
from gpu_worker.startup.calibration import head_scales
from gpu_worker.startup.fingerprint import adapter_fingerprint, fingerprint_of
from gpu_worker.startup.record_steps import record_steps
from gpu_worker.startup.sizing import Parts, add_host_memory, enough_memory, limits_of, steps_within
from gpu_worker.startup.warmup import full_step, rehearse
from gpu_worker.step.draft_model import load_draft
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.runner import Runner
from ops.model_directory.end_tokens import end_tokens_in
from ops.model_directory.files import FileError
from ops.model_directory.hub import fetched, fetched_adapter
from ops.model_directory.lora_modules import written

log = logging.getLogger(__name__)

Tell = Callable[[str], object]


def load(
    settings: WorkerSettings,
    around: Callable[[Kernels], Kernels] = lambda kernels: kernels,
    tell: Tell = lambda stage: None,
) -> Runner:
    """Load the model and set up its memory.

    With several ranks this process is rank 0. It starts the others, which load their shares and follow the
    runner until it is closed. `around`: wraps the back end, for measurements. `tell`: called with each stage
    as it begins, in words for a person.

    Raises `ModelError`, `CapacityError`, `KernelError` and `HubError`.
    """
    settings = resolved(settings)
    count, device = settings.tensor_parallel, device_of(settings)
    if count == 1:
        return load_rank(settings, ALONE, around, tell)
    for model in (settings.model, settings.draft_model):
        if model is not None:
            check_split(model, count)
    settings = settings.model_copy(update={"threads": max(1, settings.thread_count // count)})
    followers = RankProcesses(settings, device)
    try:
        runner = load_rank(settings, followers.group, around, tell)
    except WorkerError:
        followers.close()
        raise
    except Exception as error:
        followers.abandon(error)
        raise
    runner.followers = followers
    return runner


@compiling()
def load_rank(
    settings: WorkerSettings,
    ranks: Ranks,
    around: Callable[[Kernels], Kernels] = lambda kernels: kernels,
    tell: Tell = lambda stage: None,
) -> Runner:
    """Load this rank's share alone. All ranks of a worker must call this at the same time. See `load`."""
    device = device_of(settings)
    threads = settings.thread_count
    torch.set_num_threads(threads)
    tell("preparing kernels, which a first start compiles")
    with own_cores(ranks.rank, ranks.count, threads):
        plain = kernels_of(settings, device, ranks)
        kernels = around(plain)
    tell("loading weights")
    adapters = AdapterFiles(settings.adapters, plain_kernels(plain)) if settings.adapters else None
    parts = _parts(settings, kernels, device, ranks, adapters)
    tell("measuring how much memory a step takes")
    every_scales = _head_scales(settings, parts)
    limits = limits_of(settings, parts)
    runner = parts.runner(limits)
    for cache, scales in zip(runner.pages, every_scales, strict=False):
        parts.kv.set_scales(cache, scales)
    _log_memory(parts, limits)
    tell("trying steps of every size")
    add_host_memory(settings, runner, ranks)
    runner.fingerprint = fingerprint_of(settings, kernels, parts.model.dtype, device)
    runner.adapters = {
        name: adapter_fingerprint(runner.fingerprint, directory)
        for name, directory in settings.adapters.items()
    }
    _try_steps(runner, plain, device, ranks)
    runner.batch.grammars.directory = settings.model
    runner.batch.grammars.limits_time = ranks.rank == 0
    if not limits.bidirectional:  # what generates nothing has no grammars
        tell("reading the vocabulary")
        try:
            runner.batch.grammars.prepare(end_tokens_in(settings.model))
        except FileError as error:
            raise ModelError(str(error)) from error
    return runner


def _parts(
    settings: WorkerSettings,
    kernels: Kernels,
    device: torch.device,
    ranks: Ranks,
    adapters: AdapterFiles | None,
) -> Parts:
    """The model with what goes with it. Raises `ModelError` and `CapacityError`."""
    predictor = settings.draft_model or settings.model if settings.speculation == "mtp" else None
    beside = Beside(adapters, predictor, settings.image_tokens)
    dtype, longest = dtype_of(settings, device), settings.max_model_len
    model = load_model(settings.model, device, kernels, dtype, longest, ranks, beside)
    config = model.config
    if config.bidirectional and settings.quantization not in PLAIN:
        what = f"QUIRE_QUANTIZATION={settings.quantization}: the weights of an encoder are not quantized"
        raise ModelError(what)
    kv = kernels.kv_format(settings.kv_dtype, model.dtype)
    draft = _draft(settings, model, kernels, device, ranks)
    projection = None if config.num_labels else load_projection(settings.model, config.hidden_size, device)
    return Parts(model, draft, kernels, kv, device, ranks, projection)


def _log_memory(parts: Parts, limits: BatchLimits) -> None:
    block_bytes = parts.block_bytes(limits.block_size)
    log.info(
        "KV memory: %s, %d blocks of %d tokens, %.0f MiB, %.1f KiB a token; "
        "%d slots, sequences up to %d tokens, steps up to %d",
        parts.kv.name,
        limits.num_blocks,
        limits.block_size,
        limits.num_blocks * block_bytes / 2**20,
        block_bytes / limits.block_size / 2**10,
        limits.max_slots,
        limits.max_model_len,
        limits.max_step_tokens,
    )


def _try_steps(runner: Runner, plain: Kernels, device: torch.device, ranks: Ranks) -> None:
    """Compute the steps that have to be tried before the first request, and record small ones.

    `plain`: the back end as it is, without what measures it. Raises `CapacityError`.
    """
    if device.type != "cuda":
        record_steps(runner, plain)
        return
    with enough_memory(device, steps_within(runner.limits)):
        if not runner.limits.bidirectional:  # an encoder has no kernels that would have to be compiled
            rehearse(runner)
        record_steps(runner, plain, ranks)
        runner.execute(full_step(runner.limits))  # the allocator keeps the memory that this step takes
    runner.reset()


def resolved(settings: WorkerSettings) -> WorkerSettings:
    """The same settings with directories, for which what is named by an id is downloaded, and with the type
    that a CPU computes in. Raises `HubError`, and `CapacityError` if a GPU that they ask for is missing."""
    draft = settings.draft_model
    adapters = {name: fetched_adapter(each, log.info) for name, each in settings.adapters.items()}
    found = settings.model_copy(
        update={
            "model": fetched(settings.model, log.info),
            "draft_model": fetched(draft, log.info) if draft else None,
            "lora_modules": written(adapters),
        }
    )
    return with_dtype(found, device_of(found))


def _draft(
    settings: WorkerSettings, model: CausalLM, kernels: Kernels, device: torch.device, ranks: Ranks
) -> CausalLM | Predictor | None:
    """The draft model, or the model's own layer that drafts; None if the settings name neither."""
    if isinstance(model, Decoder) and model.predictor is not None:
        return model.predictor
    if settings.draft_model is None:
        return None
    longest = settings.max_model_len or model.config.max_position
    return load_draft(settings.draft_model, settings.model, model, kernels, device, longest, ranks)


def _head_scales(settings: WorkerSettings, parts: Parts) -> list[torch.Tensor]:
    """`head_scales` of the model's layers, then of the draft model's."""
    models, draft = [(parts.model, settings.model)], parts.draft
    if settings.draft_model is not None and draft is not None and not isinstance(draft, Predictor):
        models.append((draft, settings.draft_model))
    longest = settings.max_model_len or parts.model.config.max_position
    return [
        scales
        for model, directory in models
        for scales in head_scales(
            model, directory, parts.kernels, parts.kv, longest, parts.device, parts.ranks
        )
    ]


def populate_memory(runner: Runner) -> None:
    """Let the system provide a CPU's KV pages and host memory before they are written to."""
    if runner.device.type == "cpu" and runner.caches:
        populate([tensor for cache in runner.caches for tensor in cache.tensors()])
        runner.host.populate()
