"""The values of a GGUF file under the name of its architecture, and what several families read alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from ops.runtime.gguf.file import Gguf

FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors of factors by which wavelengths are stretched: of Llama 3, and of LongRoPE."""


class Keys:
    """The values of a file under the name of its architecture."""

    def __init__(self, file: Gguf, factors: Mapping[str, Sequence[float]], layered: bool = False) -> None:
        """`factors`: numbers of the tensors of `FACTORS`. `layered`: layers differ, and `number` is of the
        first one."""
        self.file, self.factors, self._layered = file, factors, layered
        self.architecture: str = file.get("general.architecture", str, "")

    def number(self, key: str, default: float | None = None) -> Any:
        """Raises `FileError` if there is no such number, and no default."""
        value = self.file.get(f"{self.architecture}.{key}", (int, float, list), default)
        if isinstance(value, list):  # of each layer
            if not value or (not self._layered and any(each != value[0] for each in value)):
                raise self.file.wrong(f"{self.architecture}.{key}", "its layers have different sizes")
            value = value[0]
        if value is None:
            raise self.file.wrong(f"{self.architecture}.{key}", "the value is missing")
        return value

    def layers(self, key: str, default: Any = None) -> list[Any]:
        """A value of each layer. Raises `FileError` if there is none, and no default."""
        value = self.file.get(f"{self.architecture}.{key}", (bool, int, float, list), default)
        count = self.number("block_count")
        if value is None or (isinstance(value, list) and len(value) != count):
            raise self.file.wrong(
                f"{self.architecture}.{key}", f"a value for each of {count} layers is needed"
            )
        return value if isinstance(value, list) else [value] * count

    def same(self, key: str) -> Any:
        """The number of all layers, but of those with 0. 0: all layers have 0. Raises `FileError` if layers
        differ."""
        numbers = set(self.layers(key)) - {0}
        if len(numbers) > 1:
            raise self.file.wrong(f"{self.architecture}.{key}", "its layers have different sizes")
        return max(numbers, default=0)

    def flag(self, key: str, default: bool) -> bool:
        found: bool = self.file.get(f"{self.architecture}.{key}", bool, default)
        return found

    def text(self, key: str) -> str:
        found: str = self.file.get(f"{self.architecture}.{key}", str, "")
        return found

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors


def feed_forward(keys: Keys) -> int:
    """Intermediate size of an MLP; of an expert if no layer has an MLP."""
    found: int = keys.number("feed_forward_length", keys.number("expert_feed_forward_length", 0))
    return found or keys.number("feed_forward_length")


def head_size(keys: Keys) -> int:
    size = keys.number("embedding_length") // max(1, keys.number("attention.head_count"))
    found: int = keys.number("attention.key_length", size)
    return found


def norm_epsilon(keys: Keys) -> float:
    """Epsilon of RMS norms, which some files name as that of layer norms."""
    other = keys.number("attention.layer_norm_epsilon", 0)
    found: float = keys.number("attention.layer_norm_rms_epsilon", other or None)
    return found


def rope_scaling(keys: Keys) -> dict[str, Any] | None:
    """Object `rope_scaling`. None: angles are not scaled."""
    longest = keys.number("context_length")
    original = keys.number("rope.scaling.original_context_length", longest)
    every, short, long = (keys.factors.get(name) for name in FACTORS)
    if every:
        short = long = every
    if short and long:
        found = {
            "rope_type": "longrope",
            "short_factor": list(short),
            "long_factor": list(long),
            "original_max_position_embeddings": original,
            "factor": longest / original,
        }
        given = keys.number("rope.scaling.attn_factor", 1.0 if every else 0)
        return found | ({"attention_factor": given} if given else {})
    kind = keys.text("rope.scaling.type")
    if kind in ("", "none"):
        return None
    found = {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if kind == "yarn":
        found["original_max_position_embeddings"] = original
    return found
