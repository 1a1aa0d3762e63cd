"""Rotary position embeddings (Su et al. 2021), and their scaling to longer contexts.

Kernels rotate all pairs of dimensions (i, i + head_dim / 2) of a head. Some models rotate other pairs, or
only some dimensions. The rows of their query and key projections are reordered when they are loaded. Scores
do not change, because they are sums over dimensions. Dimensions that are not rotated get an angle of zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gpu_worker.errors import ModelError
from gpu_worker.kernels.attention import Rotary
from gpu_worker.machine.main_memory import available
from gpu_worker.models.values import Values


@dataclass(frozen=True, slots=True)
class Linear:
    """Linear scaling."""

    factor: float
    """Positions are divided by it."""


@dataclass(frozen=True, slots=True)
class Llama3:
    """Long wavelengths are stretched, short ones are kept (Grattafiori et al. 2024, section 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int
    """Context of the first training, in positions (original_max_position_embeddings)."""


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (Peng et al. 2023): as `Llama3`, by the number of a pair instead of its wavelength."""

    factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float
    """Factor of cosines and sines, which `attn_factor` multiplies."""
    original_max_position: int
    """Context of the first training, in positions."""
    score_scale: float = 1.0
    """Another factor of scores, of latent attention alone."""


@dataclass(frozen=True, slots=True)
class LongRope:
    """LongRoPE (Ding et al. 2024): each pair of dimensions has a factor of its own."""

    short_factor: tuple[float, ...]
    """Factors if sequences have at most `original_max_position` positions."""
    long_factor: tuple[float, ...]
    """Factors if sequences may be longer."""
    attention_factor: float
    """Factor of cosines and sines."""
    original_max_position: int
    """Context of the first training, in positions."""


Scaling = Linear | Llama3 | Yarn | LongRope


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """A rotary embedding."""

    theta: float = 10000.0
    rotary_dim: int = 0
    """Number of dimensions of a head that are rotated, its first ones. 0: none."""
    interleaved: bool = False
    """Pairs are (2i, 2i + 1) instead of (i, i + rotary_dim / 2)."""
    scaling: Scaling | None = None
    query_growth: float = 0.0
    """Queries are multiplied by 1 + query_growth * log(1 + floor(position / query_stretch)), as in Llama 4
    (llama_4_scaling_beta)."""
    query_stretch: int = 1
    """Positions of which all have the same factor: the context of the first training."""


_GROWTH = "llama_4_scaling_beta"
_PLAIN = ("default", "mrope")  # as `mrope_section`

_KEYS = frozenset(
    (
        *("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "attention_factor"),
        *(
            "original_max_position_embeddings",
            "low_freq_factor",
            "high_freq_factor",
            "beta_fast",
            "beta_slow",
        ),
        *("truncate", "mscale", "mscale_all_dim", "short_factor", "long_factor"),
        "finetuned",  # a note in early files of YaRN
        *("mrope_section", "mrope_interleaved"),  # positions of text are the same in all sections
    )
)
"""Keys of a rotary embedding. Another one may change the arithmetic, at long contexts alone perhaps."""


def read_rope(
    values: Values,
    key: str,
    head_dim: int,
    theta: float,
    max_position: int,
    scales_queries: bool = False,
    in_part: bool = True,
) -> RopeConfig:
    """The embedding that object `key` of config.json describes. `theta`: the base if the object has none.

    `scales_queries`: the family's queries may grow with their positions. `in_part`: see
    `Family.rotates_in_part`. Raises `ModelError` with the key at fault.
    """
    given = values.object(key)
    known = _KEYS | {_GROWTH, "max_position_embeddings"} if scales_queries else _KEYS
    if _kind(given) == "yarn":
        known |= {"attn_factor"}
    if unknown := sorted(given.values.keys() - known):
        raise values.wrong(key, f"{unknown[0]!r} is not understood")
    dims = _rotary_dim(values, key, given, head_dim, in_part)
    if dims % 2 or dims > head_dim:
        raise values.wrong(key, f"{dims} of {head_dim} dimensions cannot be rotated in pairs")
    return RopeConfig(
        given.number("rope_theta", theta),
        dims,
        values.flag("rope_interleave"),
        _scaling(values, key, given, dims, max_position),
        *_growth(given, max_position),
    )


def _rotary_dim(values: Values, key: str, given: Values, head_dim: int, in_part: bool) -> int:
    """Number of dimensions that are rotated: `rotary_dim`, or a share of the head."""
    own = in_part and given.get("partial_rotary_factor") is not None
    if values.get("rotary_dim") is not None and not own:
        return values.positive("rotary_dim")
    share = given.number("partial_rotary_factor", values.number("partial_rotary_factor", 1.0))
    dims = int(head_dim * share)
    if dims != head_dim and not in_part and _kind(given) in _PLAIN:
        raise values.wrong(key, f"a partial_rotary_factor of {share:g} is not supported in this family")
    return dims


def _growth(given: Values, max_position: int) -> tuple[float, int]:
    """`query_growth` and `query_stretch`."""
    if not given.get(_GROWTH):  # 0 in Devstral 2
        return 0.0, 1
    return given.number(_GROWTH), given.positive("original_max_position_embeddings", max_position)


def _kind(given: Values) -> Any:
    return given.get("rope_type", given.get("type", "default"))


def _scaling(values: Values, key: str, given: Values, dims: int, max_position: int) -> Scaling | None:
    kind = _kind(given)
    if kind in _PLAIN:
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
    attention_factor = given.maybe("attention_factor")
    if kind == "yarn":
        if attention_factor is None:
            attention_factor = _yarn_attention_factor(given, factor)
        return Yarn(
            factor,
            given.number("beta_fast", 32),
            given.number("beta_slow", 1),
            given.flag("truncate", True),
            attention_factor * given.number("attn_factor", 1.0),
            original,
            _yarn_scale(factor, given.number("mscale_all_dim")) ** 2 if given.get("mscale_all_dim") else 1.0,
        )
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    rope = LongRope(given.numbers("short_factor"), given.numbers("long_factor"), attention_factor, original)
    if not len(rope.short_factor) == len(rope.long_factor) == dims // 2:
        raise values.wrong(key, f"short_factor and long_factor have not {dims // 2} numbers each")
    return rope


def _yarn_attention_factor(given: Values, factor: float) -> float:
    """`attention_factor` if config.json has none. With mscale and mscale_all_dim: as DeepSeek's code computes
    it."""
    if given.get("mscale") and given.get("mscale_all_dim"):
        return _yarn_scale(factor, given.number("mscale")) / _yarn_scale(
            factor, given.number("mscale_all_dim")
        )
    return _yarn_scale(factor, 1.0)


def _yarn_scale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def check_positions(positions: int, head_dim: int) -> None:
    """Raise `ModelError` if there is no memory for the cosines and sines of so long a sequence."""
    needed = 8 * positions * head_dim  # float32, twice while they are computed
    if needed > 2**30 and needed > (free := available()):
        raise ModelError(
            f"config.json: max_position_embeddings: rotary tables for {positions} positions take "
            f"{needed / 2**30:.0f} GiB, and {free / 2**30:.0f} are free: set QUIRE_MAX_MODEL_LEN"
        )


def rotary_tables(config: RopeConfig, head_dim: int, positions: int, device: torch.device) -> Rotary:
    """Cosines and sines for positions 0 to `positions` - 1."""
    half = config.rotary_dim // 2
    angles = torch.zeros(positions, head_dim // 2)
    angles[:, :half] = torch.outer(torch.arange(positions).float(), _frequencies(config, positions))
    cos, sin = angles.cos(), angles.sin()
    if isinstance(config.scaling, Yarn | LongRope):
        cos[:, :half] *= config.scaling.attention_factor
        sin[:, :half] *= config.scaling.attention_factor
    scales = None
    if config.query_growth:
        stretches = torch.arange(positions) // config.query_stretch
        scales = (1 + config.query_growth * torch.log1p(stretches.float())).to(device)
    return Rotary(cos.to(device), sin.to(device), scales)


def with_lines(tables: Rotary, positions: int, lines: int) -> Rotary:
    """The tables' lines of these positions, and `lines` more, which `GridLines` fills."""
    more = torch.zeros(lines, tables.cos.shape[1], device=tables.cos.device)
    cos, sin = (torch.cat((table[:positions], more)) for table in (tables.cos, tables.sin))
    return replace(tables, cos=cos, sin=sin)


class GridLines:
    """The last lines of a table: for tokens of images, which have a row and a column beside their place.

    Some pairs of dimensions are rotated by the place, others by the row or the column (Wang et al. 2024,
    section 2.1: M-RoPE).
    """

    def __init__(self, tables: Rotary, axes: Sequence[int], first: int) -> None:
        """`axes`: of each pair that is rotated, 0 for the place, 1 for the row, 2 for the column. `first`:
        the first of the lines that are made."""
        device, pairs = tables.cos.device, tables.cos.shape[1]
        self._tables, self._first = tables, first
        self._axes = torch.tensor([*axes, *[0] * (pairs - len(axes))], device=device)
        self._pairs = torch.arange(pairs, device=device)

    def make(self, places: Tensor) -> None:
        """Make a line for each token, from its place, row and column, int64 [3, tokens]."""
        by_pair = places[self._axes].T
        lines = slice(self._first, self._first + len(by_pair))
        for table in (self._tables.cos, self._tables.sin):
            table[lines] = table[by_pair, self._pairs]


def _frequencies(config: RopeConfig, positions: int) -> Tensor:
    """Radians per position, float32 [rotary_dim / 2]. `positions`: longest sequence."""
    scaling, dims = config.scaling, config.rotary_dim
    frequencies = 1.0 / config.theta ** (torch.arange(0, dims, 2).float() / max(dims, 1))
    match scaling:
        case None:
            return frequencies
        case Linear():
            return frequencies / scaling.factor
        case LongRope():
            factors = (
                scaling.long_factor if positions > scaling.original_max_position else scaling.short_factor
            )
            return frequencies / torch.tensor(factors)
        case Llama3():
            # Wavelengths longer than the original context are stretched, much shorter ones are kept. In
            # between the kept fraction is linear in the frequency.
            turns = scaling.original_max_position * frequencies / (2 * math.pi)
            low, high = scaling.low_freq_factor, scaling.high_freq_factor
            kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        case Yarn():
            first, last = (_pair(config, scaling, turns) for turns in (scaling.beta_fast, scaling.beta_slow))
            if scaling.truncate:
                first, last = math.floor(first), math.ceil(last)
            first, last = max(first, 0), min(last, dims - 1)
            kept = 1 - ((torch.arange(dims // 2) - first) / max(last - first, 0.001)).clamp(0.0, 1.0)
    return frequencies * kept + frequencies / scaling.factor * (1.0 - kept)


def _pair(config: RopeConfig, scaling: Yarn, turns: float) -> float:
    """Number of the pair, with a fraction, that makes `turns` turns within the original context."""
    return (
        config.rotary_dim
        * math.log(scaling.original_max_position / (turns * 2 * math.pi))
        / (2 * math.log(config.theta))
    )


def rotary_order(config: RopeConfig, head_dim: int) -> Tensor | None:
    """The model's dimension at each place in a kernel's head, int64 [head_dim]. None: the order is the
    same."""
    dims, half = config.rotary_dim, head_dim // 2
    if not dims or (dims == head_dim and not config.interleaved):
        return None
    rotated = torch.arange(dims)
    firsts, seconds = (rotated[::2], rotated[1::2]) if config.interleaved else rotated.chunk(2)
    left = torch.arange(dims, head_dim)
    cut = half - dims // 2
    return torch.cat((firsts, left[:cut], seconds, left[cut:]))
