"""What adapter_config.json of PEFT says of a LoRA adapter: ranks and scales, or why it cannot be served."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_worker.errors import ModelError
from gpu_worker.models.values import Values
from ops.model_directory.files import FileError, read_json

CONFIG = "adapter_config.json"
MOST_BYTES = 2**20
"""Size of an adapter_config.json. A long one has some kilobytes."""
MOST_RANK = 4096
MOST_REPETITIONS = 2
"""Repetitions of a pattern. Time to match it is the length of a name to the power of this and of one more."""
MOST_PATTERNS = 32
"""Patterns with repetitions: each module is matched with all, a hundredth of a second each at worst."""

_REFUSED = {
    "use_dora": "DoRA is not supported",
    "modules_to_save": "modules that were trained whole are not supported",
    "lora_bias": "biases of adapters are not supported",
    "target_parameters": "adapters of stacked parameters, such as experts, are not supported",
    "trainable_token_indices": "tokens that were trained are not supported",
    "alora_invocation_tokens": "adapters that begin within a text are not supported",
    "layer_replication": "layers that were replicated are not supported",
    "use_qalora": "QALoRA is not supported",
    "use_bdlora": "BD-LoRA is not supported",
    "arrow_config": "Arrow is not supported",
    "kasa_config": "KaSA is not supported",
}
"""Keys that may be missing, null, false or empty, and why any other value is refused."""
_INITS = ("gaussian", "eva", "orthogonal")
"""Initializations of factors that leave the model's own weights as they are."""
_QUANTIFIER = re.compile(r"[*+?{]")
_PLAIN = re.compile(r"[\w.\\|()\[\]^$*+?{},-]{1,200}", re.ASCII)


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Rank and scale of each product's factors."""

    path: Path
    rank: int
    alpha: float
    by_root: bool
    """Scales are alpha / sqrt(rank) (Kalajdzievski 2023, "rsLoRA"), not alpha / rank."""
    ranks: Mapping[str, int]
    """Ranks that differ, by a pattern of names of modules."""
    alphas: Mapping[str, float]
    """As `ranks`."""

    def rank_of(self, module: str) -> int:
        """Rank of the factors of a module."""
        return self.ranks.get(_pattern_of(module, self.ranks), self.rank)

    def scale_of(self, module: str) -> float:
        """What the product of a module's factors is multiplied by."""
        rank = self.rank_of(module)
        alpha = self.alphas.get(_pattern_of(module, self.alphas), self.alpha)
        return alpha / (rank**0.5 if self.by_root else rank)


def read_adapter_config(directory: Path) -> AdapterConfig:
    """Read a directory's adapter_config.json. Raises `ModelError`, which names the key, if it cannot be
    served."""
    path = directory / CONFIG
    try:
        values = Values(path, read_json(path, MOST_BYTES))
    except FileError as error:
        raise ModelError(str(error)) from error
    if (kind := values.get("peft_type")) != "LORA":
        raise values.wrong("peft_type", f"adapters of type LORA are served, not {str(kind)[:40]!r}")
    for key, what in _REFUSED.items():
        if values.get(key):
            raise values.wrong(key, what)
    if (bias := values.get("bias", "none")) != "none":
        raise values.wrong("bias", f"adapters with biases are not supported: {str(bias)[:40]!r}")
    start = values.get("init_lora_weights", True)
    if isinstance(start, str) and start not in _INITS:
        what = f"{start[:40]!r} changes the model's own weights: convert it to a plain adapter"
        raise values.wrong("init_lora_weights", what)
    return AdapterConfig(
        path,
        _rank(values, "r", values.positive("r", 8)),
        values.number("lora_alpha", 8.0),
        values.flag("use_rslora"),
        {key: _rank(values, "rank_pattern", rank) for key, rank in _patterns(values, "rank_pattern")},
        {key: _alpha(values, alpha) for key, alpha in _patterns(values, "alpha_pattern")},
    )


def _pattern_of(module: str, patterns: Mapping[str, Any]) -> str:
    """The first pattern that fits, as PEFT finds it; else the module's name."""
    return next((one for one in patterns if re.match(rf"(.*\.)?({one})$", module)), module)


def _patterns(values: Values, key: str) -> list[tuple[str, Any]]:
    """The entries of a pattern. Anybody may have written it, so it must be one that is matched in no time."""
    found, repeat = list(values.object(key).values.items()), 0
    for pattern, _ in found:
        repeat += _QUANTIFIER.search(pattern) is not None
        if repeat > MOST_PATTERNS:
            raise values.wrong(key, f"of at most {MOST_PATTERNS} patterns parts may be repeated: write names")
        nested = re.search(r"\)[*+?{]", pattern) is not None
        if nested or not _PLAIN.fullmatch(pattern) or len(_QUANTIFIER.findall(pattern)) > MOST_REPETITIONS:
            raise values.wrong(key, f"{pattern[:80]!r} is no name, or too much of a regular expression")
        try:
            re.compile(pattern)
        except re.error as error:
            raise values.wrong(key, f"{pattern[:80]!r} is no regular expression: {error}") from error
    return found


def _rank(values: Values, key: str, rank: object) -> int:
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= MOST_RANK:
        raise values.wrong(key, f"a rank is from 1 to {MOST_RANK}, not {str(rank)[:40]}")
    return rank


def _alpha(values: Values, alpha: object) -> float:
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha < 1e30:
        raise values.wrong("alpha_pattern", f"a positive number is needed, not {str(alpha)[:40]}")
    return float(alpha)
