"""The sizes of a worker's batch: slots, and blocks of KV memory on the device and on the host."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch

from gpu_worker.errors import CapacityError, ModelError, OutOfMemoryError
from gpu_worker.kernels.attention import Cache, KvFormat
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.kv_sizes import usual_block_size
from gpu_worker.machine.main_memory import available
from gpu_worker.memory.cache import (
    GPU_SHARE,
    HOST_SHARE,
    blocks_within,
    bytes_per_block,
    free_memory,
    make_caches,
    state_bytes,
    token_bytes,
)
from gpu_worker.memory.host import HostPages, slots_within
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.models.encoder_load import usual_length
from gpu_worker.models.predictor import Predictor
from gpu_worker.models.projection import Projection
from gpu_worker.models.ranks import Ranks
from gpu_worker.models.vision import Tower
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.warmup import full_step, host_offer
from gpu_worker.step.draft_model import DraftModel
from gpu_worker.step.drafter import Drafter
from gpu_worker.step.images import slot_images
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.predicted import PredictedTokens
from gpu_worker.step.runner import Runner
from ops.model_directory.vision import TEXT_ALONE
from ops.runtime.gpus import present

log = logging.getLogger(__name__)

SLOTS = {"cpu": 64, "cuda": 256}
"""Default number of slots by kind of device."""
STEP_TOKENS = {"cpu": 512, "cuda": 2048}
"""Default token budget of a step by kind of device. A GPU computes some hundreds of tokens in the time in
which it reads the weights."""
BLOCKS_OF_A_TEXT = 3
"""Blocks of an encoder for each slot: the text's own, one more that admission leaves to each running
sequence, and one for its watermark."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a runner is made of, except its KV memory."""

    model: CausalLM
    """The model that is served."""
    draft: CausalLM | Predictor | None
    """The draft model, or the model's own layer that drafts; None if there is neither."""
    kernels: Kernels
    """The back end."""
    kv: KvFormat
    """Format of the KV pages of both."""
    device: torch.device
    """The device of weights and pages."""
    ranks: Ranks
    """This rank among all ranks of the worker."""
    projection: Projection | None = None
    """What makes embeddings of pooled hidden states; None: they are embeddings."""

    @property
    def embedding_size(self) -> int:
        """Numbers of an embedding."""
        return self.projection.outputs if self.projection else self.model.config.hidden_size

    def block_bytes(self, size: int) -> int:
        """Bytes of one block of `size` tokens, in both and on all ranks together."""
        models = (self.model, self.draft) if self.draft else (self.model,)
        return self.ranks.count * sum(bytes_per_block(each.config, size, self.kv) for each in models)

    def usual_block_size(self, longest: int) -> int:
        """Tokens of a block where no setting says how many. `longest`: of the longest sequence."""
        config = self.model.config
        return usual_block_size(token_bytes(config, self.kv), state_bytes(config), longest)

    def runner(self, limits: BatchLimits) -> Runner:
        """A runner with pages of `limits.num_blocks` blocks."""
        drafter: Drafter | None = None
        if isinstance(self.draft, Predictor):
            drafter = PredictedTokens(self.draft, self._pages(self.draft, limits), self.kernels)
        elif self.draft is not None:
            pages = self._pages(self.draft, limits)
            drafter = DraftModel(self.draft, pages, self.kernels, limits.vocab_size)
        pages = self._pages(self.model, limits)
        images = slot_images(self.model, limits, self.device, self.ranks)
        return Runner(self.model, pages, self.kernels, limits, drafter, self.projection, images)

    def _pages(self, model: CausalLM | Predictor, limits: BatchLimits) -> list[Cache]:
        return make_caches(model.config, limits.num_blocks, limits.block_size, self.kv, self.device)


def limits_of(settings: WorkerSettings, parts: Parts) -> BatchLimits:
    """The sizes of the batch, with as many blocks as memory allows.

    An encoder has no pages. Each of its texts is one block, which is there for the scheduler's books alone.

    Raises `ModelError` if QUIRE_MAX_MODEL_LEN is beyond the model's limit, `CapacityError` if one sequence of
    the longest length does not fit, `OutOfMemoryError` if it does not fit into what is free.
    """
    config = parts.model.config
    longest = settings.max_model_len or config.max_position
    if config.bidirectional and not settings.max_model_len:
        longest = usual_length(settings.model, longest)
    if longest > config.max_position:
        raise ModelError(
            f"QUIRE_MAX_MODEL_LEN={longest}: this model is served with {config.max_position} tokens at most"
        )
    window = config.window if config.window < longest else 0
    size = longest if config.bidirectional else settings.block_size or parts.usual_block_size(longest)
    step_tokens = settings.step_tokens or STEP_TOKENS[parts.device.type]
    tower = parts.model.tower
    limits = BatchLimits(
        num_blocks=1,
        block_size=size,
        max_slots=settings.max_slots or SLOTS[parts.device.type],
        max_model_len=longest,
        max_step_tokens=max(step_tokens, longest) if config.bidirectional else step_tokens,
        vocab_size=config.vocab_size,
        window=window,
        embedding_size=parts.embedding_size,
        num_labels=config.num_labels,
        bidirectional=config.bidirectional,
        recurrent=config.recurrent,
        adapters=tuple(settings.adapters),
        images=tower is not None,
        whole_images=tower is not None and tower.vision.together != "nowhere",
        headless=config.headless,
    )
    if limits.whole_images:
        assert tower is not None
        _check_room_for_images(limits, tower)
    if config.bidirectional:
        return replace(limits, num_blocks=BLOCKS_OF_A_TEXT * limits.max_slots)
    needed = limits.blocks_at_once
    limits = replace(limits, num_blocks=needed)
    if settings.kv_memory is not None:
        memory, useful = int(settings.kv_memory), 1 << 31
    elif parts.device.type == "cuda":
        memory, useful = _left_on_gpu(parts, limits, settings.memory_share) * parts.ranks.count, 1 << 31
    else:
        memory = int(free_memory(parts.device) * settings.memory_share)
        useful = limits.max_slots * needed
    try:
        blocks = blocks_within(memory, parts.block_bytes(size), needed, useful)
    except CapacityError as error:
        if settings.kv_memory is not None:
            raise
        raise OutOfMemoryError(str(error)) from error
    return replace(limits, num_blocks=parts.ranks.least(blocks))


def _check_room_for_images(limits: BatchLimits, tower: Tower) -> None:
    """Raise `ModelError` if a step has no room for an image as a whole beside the answers of all slots."""
    needed = tower.most_tokens + limits.max_slots
    if limits.max_step_tokens < needed:
        raise ModelError(
            f"QUIRE_STEP_TOKENS={limits.max_step_tokens}: a step computes images of {tower.most_tokens} "
            f"tokens as wholes, beside {limits.max_slots} answers: {needed} at least ({TEXT_ALONE})"
        )


def _left_on_gpu(parts: Parts, limits: BatchLimits, share: float) -> int:
    """Bytes that a rank's pages may take: `GPU_SHARE` of what the largest step leaves free, and the largest
    image beside it.

    `share`: the worker's part of the GPU's memory, of which its weights are taken, too. So it does not matter
    whether the other workers of the GPU have loaded theirs.
    """
    device = parts.device
    with enough_memory(device, steps_within(limits)):
        runner = parts.runner(limits)
        activations = _taken(device, partial(runner.execute, full_step(limits)))
        if parts.model.tower is not None:  # it computes beside steps
            activations += _taken(device, parts.model.tower.rehearse)
    del runner
    torch.cuda.empty_cache()
    own = int(torch.cuda.get_device_properties(device).total_memory * share)
    own -= torch.cuda.memory_allocated(device)
    return int((min(free_memory(device), own) - activations) * GPU_SHARE)


def _taken(device: torch.device, work: Callable[[], object]) -> int:
    """Bytes of a GPU that `work` takes at most, beside those that were taken before."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return torch.cuda.max_memory_allocated(device) - before


@contextmanager
def enough_memory(device: torch.device, work: str) -> Iterator[None]:
    """Run steps before the first request. Raises `OutOfMemoryError` if the GPU's memory is too small.

    `work`: what the memory is for, in words for a person.
    """
    try:
        yield
    except RuntimeError as error:  # of PyTorch's allocator; of a library, or a launch, that needs memory
        if not any(lack in str(error) for lack in ("out of memory", "ALLOC_FAILED")):
            raise
        raise OutOfMemoryError(f"no memory on {device} beside weights{work}") from error


def steps_within(limits: BatchLimits) -> str:
    """The work of the largest step, for `enough_memory`."""
    return (
        f" and KV memory for a step of {limits.max_step_tokens} tokens in {limits.max_slots} slots: lower "
        "QUIRE_STEP_TOKENS, QUIRE_MAX_SLOTS or QUIRE_MAX_MODEL_LEN, or QUIRE_KV_MEMORY if it is set"
    )


def add_host_memory(settings: WorkerSettings, runner: Runner, ranks: Ranks) -> None:
    """Give the runner the host memory that the settings ask for.

    Raises `CapacityError` if it does not hold one block, `OutOfMemoryError` if it is more than is free.
    """
    size, on_gpu = runner.host.block_bytes * ranks.count, runner.device.type == "cuda"
    if not size:  # nothing is kept of the texts of an encoder
        return
    memory, free = int(settings.host_memory or 0), available()
    if settings.host_memory is None and on_gpu:
        own = ranks.count / max(ranks.count, present())  # other workers may have the machine's other GPUs
        memory = int(free * HOST_SHARE * own * settings.memory_share)
    blocks = slots_within(memory // ranks.count, runner.host.block_bytes, on_gpu)
    if memory > free or (settings.host_memory and not blocks):
        raise (OutOfMemoryError if memory > free else CapacityError)(
            f"QUIRE_HOST_MEMORY is {memory / 2**20:.0f} MiB: a block takes {size / 2**20:.2f} MiB"
            f"{', pinned the next power of two' if on_gpu else ''}, and {free / 2**20:.0f} MiB are free"
        )
    if blocks := ranks.least(blocks):
        runner.host = HostPages(runner.caches, blocks)
        with enough_memory(runner.device, steps_within(runner.limits)):
            runner.host_offer = offer = host_offer(runner)
        log.info(
            "host memory: %d blocks, %.0f MiB; %.0f us to move one, %.0f us to compute a token",
            blocks,
            blocks * size / 2**20,
            offer.swap_block_us,
            offer.token_us,
        )
