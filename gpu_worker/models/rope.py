"""Rotary position embeddings (Su et al. 2021), and how they are stretched to longer contexts.

Kernels rotate all pairs of dimensions (i, i + head_dim / 2) of a head. Where a model pairs others, or
leaves some alone, the rows of its query and key projections are put into that order when they are loaded:
scores are sums over dimensions, so that any order will do that both have. Pairs that are left alone turn
by an angle of zero.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.kernels.attention import Rotary
from gpu_worker.models.values import Values


@dataclass(frozen=True, slots=True)
class Linear:
    """Positions divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3:
    """Long wavelengths stretched, short ones left alone (Grattafiori et al. 2024, section 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original: int
    """Positions that the model was first trained with, here and below."""


@dataclass(frozen=True, slots=True)
class Yarn:
    """As `Llama3`, by a pair's place instead of its wavelength (Peng et al. 2023)."""

    factor: float
    fast: float
    slow: float
    truncate: bool
    amplitude: float
    """What cosines and sines are multiplied by, here and below."""
    original: int
    sharpness: float = 1.0
    """What latent attention multiplies scores by besides."""


@dataclass(frozen=True, slots=True)
class LongRope:
    """Each pair by a factor of its own (Ding et al. 2024): one set of them for sequences up to `original`
    positions, one for longer ones."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    amplitude: float
    original: int


Scaling = Linear | Llama3 | Yarn | LongRope


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """One embedding."""

    theta: float = 10000.0
    dims: int = 0
    """How many dimensions of a head are rotated, its first ones. 0: none."""
    interleaved: bool = False
    """Pairs are (2i, 2i + 1) instead of (i, i + dims / 2)."""
    scaling: Scaling | None = None


def read_rope(values: Values, key: str, head_dim: int, theta: float, max_position: int) -> RopeConfig:
    """The embedding that the object `key` describes; `theta` unless it says otherwise.

    Raises `ModelError` with the key at fault.
    """
    given = values.object(key)
    share = given.number("partial_rotary_factor", values.number("partial_rotary_factor", 1.0))
    dims = values.positive("rotary_dim", int(head_dim * share))
    if dims % 2 or dims > head_dim:
        raise values.wrong(key, f"{dims} of {head_dim} dimensions cannot be rotated in pairs")
    return RopeConfig(
        given.number("rope_theta", theta),
        dims,
        values.flag("rope_interleave"),
        _scaling(values, key, given, dims, max_position),
    )


def _scaling(values: Values, key: str, given: Values, dims: int, max_position: int) -> Scaling | None:
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return Linear(given.number("factor"))
    if kind not in ("llama3", "yarn", "longrope", "su"):
        known = "default, linear, llama3, yarn, longrope"
        raise values.wrong(key, f"rope type {kind!r} is not supported ({known})")
    original = given.get("original_max_position_embeddings") or values.positive(
        "original_max_position_embeddings", max_position
    )
    factor = given.number("factor", max_position / original)
    if kind == "llama3":
        low, high = given.number("low_freq_factor"), given.number("high_freq_factor")
        return Llama3(factor, low, high, original)
    amplitude = given.maybe("attention_factor")
    if kind == "yarn":
        return Yarn(
            factor,
            given.number("beta_fast", 32),
            given.number("beta_slow", 1),
            given.flag("truncate", True),
            _yarn_amplitude(given, factor) if amplitude is None else amplitude,
            original,
            _yarn_scale(factor, given.number("mscale_all_dim")) ** 2 if given.get("mscale_all_dim") else 1.0,
        )
    if amplitude is None:
        amplitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    rope = LongRope(given.numbers("short_factor"), given.numbers("long_factor"), amplitude, original)
    if not len(rope.short) == len(rope.long) == dims // 2:
        raise values.wrong(key, f"short_factor and long_factor have not {dims // 2} numbers each")
    return rope


def _yarn_amplitude(given: Values, factor: float) -> float:
    """As in DeepSeek's code where it says more than the paper: two scales, one over the other."""
    if given.get("mscale") and given.get("mscale_all_dim"):
        return _yarn_scale(factor, given.number("mscale")) / _yarn_scale(
            factor, given.number("mscale_all_dim")
        )
    return _yarn_scale(factor, 1.0)


def _yarn_scale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def rotary_tables(config: RopeConfig, head_dim: int, positions: int, device: torch.device) -> Rotary:
    """Cosines and sines for so many positions."""
    half = config.dims // 2
    angles = torch.zeros(positions, head_dim // 2)
    angles[:, :half] = torch.outer(torch.arange(positions).float(), _frequencies(config, positions))
    cos, sin = angles.cos(), angles.sin()
    if isinstance(config.scaling, Yarn | LongRope):
        cos[:, :half] *= config.scaling.amplitude
        sin[:, :half] *= config.scaling.amplitude
    return Rotary(cos.to(device), sin.to(device))


def _frequencies(config: RopeConfig, positions: int) -> Tensor:
    """Radians per position, float32 [dims / 2], where sequences have up to `positions`."""
    scaling, dims = config.scaling, config.dims
    frequencies = 1.0 / config.theta ** (torch.arange(0, dims, 2).float() / max(dims, 1))
    match scaling:
        case None:
            return frequencies
        case Linear():
            return frequencies / scaling.factor
        case LongRope():
            factors = scaling.long if positions > scaling.original else scaling.short
            return frequencies / torch.tensor(factors)
        case Llama3():
            # Wavelengths longer than the old context are stretched, those much shorter are left alone,
            # and between the two the share moves linearly with the frequency.
            turns = scaling.original * frequencies / (2 * math.pi)
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        case Yarn():
            first, last = (_pair(config, scaling, turns) for turns in (scaling.fast, scaling.slow))
            if scaling.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, dims - 1)
            kept = 1 - ((torch.arange(dims // 2) - first) / max(last - first, 0.001)).clamp(0.0, 1.0)
    return frequencies * kept + frequencies / scaling.factor * (1.0 - kept)


def _pair(config: RopeConfig, scaling: Yarn, turns: float) -> float:
    """Number of the pair, with a fraction, that turns so often within the first context."""
    return config.dims * math.log(scaling.original / (turns * 2 * math.pi)) / (2 * math.log(config.theta))


def rotary_order(config: RopeConfig, head_dim: int) -> Tensor | None:
    """Which of the model's dimensions goes where in a head, int64 [head_dim]; None: all stay."""
    dims, half = config.dims, head_dim // 2
    if not dims or (dims == head_dim and not config.interleaved):
        return None
    rotated = torch.arange(dims)
    firsts, seconds = (rotated[::2], rotated[1::2]) if config.interleaved else rotated.chunk(2)
    left = torch.arange(dims, head_dim)
    cut = half - dims // 2
    return torch.cat((firsts, left[:cut], seconds, left[cut:]))
