"""From a model directory to a decoder."""

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gpu_worker.errors import ModelError, OutOfMemoryError
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.kept import kinds_kept
from gpu_worker.machine.onednn import has_onednn_bfloat16
from gpu_worker.models.adapters.adapters import AdapterFiles
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.models.checkpoint import Checkpoint, is_gguf, open_checkpoint
from gpu_worker.models.config import architecture_of, read_config, read_values
from gpu_worker.models.decoder import Decoder
from gpu_worker.models.encoder_load import load_encoder
from gpu_worker.models.families import family_named, family_of
from gpu_worker.models.float16 import computed_in
from gpu_worker.models.formats import read_format
from gpu_worker.models.formats.format import IN_MLX_FORM, KEY, Format
from gpu_worker.models.head import has_another_head, has_head
from gpu_worker.models.kv_scales import ENDS, UNUSED
from gpu_worker.models.predictor import NO_PREDICTOR, Predictor
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.models.rope import check_positions
from gpu_worker.models.split import rank_config
from gpu_worker.models.transformers_load import load_with_transformers
from gpu_worker.models.vision import load_tower
from gpu_worker.models.weights import Weights
from ops.model_directory.encoder import encoder_family
from ops.model_directory.files import FileError
from ops.model_directory.modules import pools

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beside:
    """What a decoder has beside its own layers."""

    adapters: AdapterFiles | None = None
    """LoRA adapters; None: it has none."""
    predictor: Path | None = None
    """Directory of the checkpoint with its layer for multi-token prediction; None: that is not loaded."""
    image_tokens: int = 0
    """Tokens of one image, at most, that see something. 0: its vision tower is not loaded, if it has one."""


NOTHING = Beside()

_DERIVED = ("rotary_emb.inv_freq", ".attn.bias", ".attention.bias", ".masked_bias")
"""Ends of names of tensors that old checkpoints have although they follow from the configuration."""


def load_model(
    directory: Path,
    device: torch.device,
    kernels: Kernels,
    dtype: torch.dtype | None = None,
    max_positions: int = 0,
    ranks: Ranks = ALONE,
    beside: Beside = NOTHING,
) -> CausalLM:
    """Load the model of a Hugging Face directory.

    `dtype`: None = the checkpoint's. `max_positions`: longest sequence; 0 = the model's own limit. With
    several `ranks` each loads its part, and sizes in its configuration are those of the part. Loading needs
    memory for the weights and one more matrix. Raises `OutOfMemoryError` if there is less memory, and
    `ModelError` if the model cannot be loaded; both have messages of one line.
    """
    started = time.monotonic()
    values = read_values(directory)
    architecture = architecture_of(values)
    model: CausalLM
    native = family_of(architecture, values.values) is not None
    if beside.predictor is not None and not native:
        raise ModelError(f"{directory}: {NO_PREDICTOR}: {architecture} is not one of our own decoders")
    form = read_format(values)
    if beside.adapters is not None and (not native or encoder_family(values.values)):
        raise ModelError(f"{directory}: {architecture} is served without LoRA adapters")
    if encoder := encoder_family(values.values):
        model, checkpoint, parameters = load_encoder(values, encoder, form, device, dtype)
    elif native:
        model, checkpoint = _load_native(
            directory, form, device, kernels, dtype, max_positions, ranks, beside
        )
        parameters = checkpoint.parameters
    else:
        unlike = ""
        if family := family_named(architecture):
            unlike = ", ".join(family.unlike(values.values))
            log.info(
                "%s: transformers runs a %s that is unlike others in %s", directory, architecture, unlike
            )
        try:
            model, checkpoint, parameters = load_with_transformers(
                directory, values, form, device, kernels, dtype, max_positions
            )
        except ModelError as error:
            if not unlike:
                raise
            raise ModelError(f"{error} (it is unlike other models of its family in {unlike})") from error
    if beside.image_tokens and not encoder:
        # PyTorch, which computes towers, takes many times as long for bfloat16 where oneDNN has none.
        slow = device.type == "cpu" and model.dtype == torch.bfloat16 and not has_onednn_bfloat16()
        tower_dtype = torch.float32 if slow else model.dtype
        model.tower = load_tower(directory, beside.image_tokens, form, device, tower_dtype)
    if model.tower is not None:
        log.info("%s: a vision tower of %.1f MiB", directory, model.tower.nbytes / 2**20)
    elif checkpoint.left:
        log.info("%s: text alone is served, %d other tensors are left", directory, checkpoint.left)
    if form is not None and not encoder:
        log.info("%s: %s", directory, checkpoint.kept_share(model.dtype))
    log.info(
        "%s: %s, %.1f M parameters, %s on %s, loaded in %.1f s",
        directory,
        architecture if native else f"{architecture} of transformers",
        parameters / 1e6,
        str(model.dtype).removeprefix("torch."),
        device,
        time.monotonic() - started,
    )
    return model


def check_split(directory: Path, count: int) -> None:
    """Raise `ModelError` if a model cannot be split among `count` ranks."""
    values = read_values(directory)
    architecture = architecture_of(values)
    if family_of(architecture, values.values) is None:
        raise ModelError(f"QUIRE_TENSOR_PARALLEL={count}: {architecture} of transformers cannot be split")
    try:
        rank_config(read_config(directory), count)
    except ModelError as error:
        raise ModelError(f"{directory}: {error}") from error


def _load_native(
    directory: Path,
    form: Format | None,
    device: torch.device,
    kernels: Kernels,
    dtype: torch.dtype | None,
    max_positions: int,
    ranks: Ranks,
    beside: Beside,
) -> tuple[Decoder, Checkpoint]:
    """The decoder, and its checkpoint, which is closed."""
    config = read_config(directory)
    positions = max_positions or config.max_position
    config = config.up_to(positions)
    check_positions(positions, config.head_dim)
    if form is not None and config.family.transposed:
        what = f"{form.name} is not supported for {config.architecture}, whose weights are [in, out]"
        raise ModelError(f"{directory / 'config.json'}: {KEY}: {what}")
    stacked = config.family.experts is not None and config.family.experts.stacked
    aliases = config.family.aliases
    files = beside.adapters
    adapters = None if files is None else files.read(config, is_gguf(directory))
    with open_checkpoint(directory, form, stacked, aliases) as checkpoint, torch.inference_mode():
        if checkpoint.of_mlx and config.family.recurrent is not None:  # its norms are 1 + weight in some
            raise ModelError(f"{directory}: {IN_MLX_FORM}")
        keeps = frozenset() if form is None else kinds_kept(kernels)
        dtype = computed_in(
            dtype or config.dtype or checkpoint.dtype(), dtype is not None, config.architecture
        )
        weights = Weights(checkpoint, dtype, device, ranks=ranks, keeps=keeps)
        if not (config.num_labels or config.headless or has_head(config, weights)):
            if _pools(directory):
                log.info("%s: it has no head, and embeds texts alone", directory)
                config = replace(config, headless=True)
            elif checkpoint.left:  # a model that sees: two keys tie its head, and may differ
                config = replace(config, tie_word_embeddings=True)
        if has_another_head(config, weights):
            log.info("%s: it has a head of its own, although config.json ties it", directory)
            config = replace(config, tie_word_embeddings=False)
        try:
            model = Decoder(config, weights, kernels, positions, adapters)
            if (where := beside.predictor) is not None:
                with open_checkpoint(where, read_format(read_values(where)), stacked, aliases) as its:
                    own = replace(weights, checkpoint=its)
                    model.predictor = Predictor(model, weights, own, kernels, positions)
        except (RuntimeError, OSError) as error:  # OutOfMemoryError; of a CPU's allocator; of mapping memory
            if "memory" not in str(error):
                raise
            raise OutOfMemoryError(f"{directory}: no memory on {device} for the weights") from error
        if adapters is not None:
            count, size = len(adapters.names), adapters.nbytes / 2**20
            log.info("LoRA adapters: %d, %.1f MiB beside the weights", count, size)
        head_is_spare = config.tie_word_embeddings or not config.has_lm_head
        tied = (f"{config.family.names.head}.weight",) if head_is_spare else ()
        ignored = (*_DERIVED, *ENDS, *UNUSED, *tied)  # scales are read if the format of the pages has them
        unread = (name for name in checkpoint.unread() if not name.startswith(config.unused))
        unknown = checkpoint.unaccounted(unread, ignored)
        if unknown:
            raise ModelError(f"{directory}: config.json does not account for tensor {unknown[0]}")
    return model, checkpoint


def _pools(directory: Path) -> bool:
    try:
        return pools(directory)
    except FileError as error:
        raise ModelError(str(error)) from error
