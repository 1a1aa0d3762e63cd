"""The values of a GGUF file under the name of its architecture, and what several families read alike."""

from collections.abc import Mapping, Sequence
from typing import Any

from ops.model_directory.files import FileError
from ops.model_directory.gguf.file import Gguf

FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors of factors by which wavelengths are stretched: of Llama 3, and of LongRoPE."""

_NEUTRAL: Mapping[str, tuple[float, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.indexer.top_k": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.output_scale": (0, 1),
    "attention.scale": (0,),
    "attention.shared_kv_layers": (0,),
    "attention.sliding_window": (0,),
    "attention.sliding_window_pattern": (),
    "attention.temperature_scale": (0,),
    "attention.value_scale": (0, 1),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_group_scale": (0, 1),
    "experts_per_group": (0, 1),
    "final_logit_softcapping": (0,),
    "interleave_moe_layer_step": (0, 1),
    "logit_scale": (0, 1),
    "moe_every_n_layers": (0, 1),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0,),
    "rope.scaling.attn_factor": (0, 1),
    "rope.scaling.yarn_attn_factor": (),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "router_logit_softcapping": (0,),
    "swiglu_clamp_exp": (0,),
    "swiglu_clamp_shexp": (0,),
    "use_parallel_residual": (False,),
}
"""Keys that change the arithmetic of some architecture in llama.cpp, with the values that change nothing."""


class Keys:
    """The values of a file under the name of its architecture."""

    def __init__(self, file: Gguf, factors: Mapping[str, Sequence[float]], layered: bool = False) -> None:
        """`factors`: numbers of the tensors of `FACTORS`. `layered`: layers differ, and `number` is of the
        first one."""
        self.file, self.factors, self._layered = file, factors, layered
        self._read = set[str]()
        self.architecture: str = file.get("general.architecture", str, "")

    def number(self, key: str, default: float | None = None) -> Any:
        """Raises `FileError` if there is no such number, and no default."""
        value = self._get(key, (int, float, list), default)
        if isinstance(value, list):  # of each layer
            if not value or (not self._layered and any(each != value[0] for each in value)):
                raise self.wrong(key, "its layers have different sizes")
            value = value[0]
        if value is None:
            raise self.wrong(key, "the value is missing")
        return value

    def layers(self, key: str, default: Any = None) -> list[Any]:
        """A value of each layer. Raises `FileError` if there is none, and no default."""
        value = self._get(key, (bool, int, float, list), default)
        count = self.number("block_count")
        if value is None or (isinstance(value, list) and len(value) != count):
            raise self.wrong(key, f"a value for each of {count} layers is needed")
        return value if isinstance(value, list) else [value] * count

    def same(self, key: str) -> Any:
        """The number of all layers, but of those with 0. 0: all layers have 0. Raises `FileError` if layers
        differ."""
        numbers = set(self.layers(key)) - {0}
        if len(numbers) > 1:
            raise self.wrong(key, "its layers have different sizes")
        return max(numbers, default=0)

    def flag(self, key: str, default: bool) -> bool:
        found: bool = self._get(key, bool, default)
        return found

    def text(self, key: str) -> str:
        found: str = self._get(key, str, "")
        return found

    def has(self, tensor: str) -> bool:
        return tensor in self.file.tensors

    def wrong(self, key: str, what: str) -> FileError:
        """An error that names the file and the key, followed by `what`."""
        return self.file.wrong(f"{self.architecture}.{key}", what)

    def check_unread(self) -> None:
        """Raise `FileError` for a value that changes the arithmetic, if nothing has read it."""
        base, dims = self.number("rope.freq_base", 10000.0), head_size(self)
        as_others = {
            "rope.freq_base_swa": (base,),
            "rope.dimension_count_swa": (self.number("rope.dimension_count", dims),),
        }
        for key, neutral in {**_NEUTRAL, **as_others}.items():
            value = self.file.values.get(f"{self.architecture}.{key}")
            each = value if isinstance(value, list) else [] if value is None else [value]
            if key not in self._read and any(one not in neutral for one in each):
                raise self.wrong(key, f"{str(value)[:60]} is not supported")

    def _get(self, key: str, kind: Any, default: Any) -> Any:
        self._read.add(key)
        return self.file.get(f"{self.architecture}.{key}", kind, default)


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


def windows(keys: Keys, every: int) -> dict[str, Any]:
    """Windows: of all layers but each one of a number, or of those that have true in the file.

    `every`: the number, if the file has neither.
    """
    key, kinds = "attention.sliding_window_pattern", ("full_attention", "sliding_attention")
    pattern = keys.layers(key, every)
    if not all(isinstance(each, bool) or (isinstance(each, int) and each > 0) for each in pattern):
        raise keys.wrong(key, f"{str(pattern[0])[:60]} is not supported")
    return {
        "sliding_window": keys.number("attention.sliding_window"),
        "layer_types": [
            kinds[each if isinstance(each, bool) else number % each > 0]
            for number, each in enumerate(pattern, 1)
        ],
    }


def rope_scaling(keys: Keys) -> dict[str, Any] | None:
    """Object `rope_scaling`. None: angles are not scaled."""
    longest = keys.number("context_length")
    original = keys.number("rope.scaling.original_context_length", longest)
    linear = keys.number("rope.scale_linear", 0)  # the factor in early files
    factor = keys.number("rope.scaling.factor", linear)
    every, short, long = (keys.factors.get(name) for name in FACTORS)
    if every:
        short = long = every
    if short and long:
        if factor not in (0, 1):
            raise keys.wrong("rope.scaling.factor", "is not supported beside factors of single dimensions")
        found = {
            "rope_type": "longrope",
            "short_factor": list(short),
            "long_factor": list(long),
            "original_max_position_embeddings": original,
            "factor": longest / original,
        }
        given = keys.number("rope.scaling.attn_factor", 1.0 if every else 0)
        return found | ({"attention_factor": given} if given else {})
    kind = keys.text("rope.scaling.type") or ("linear" if factor else "none")
    if kind == "none":
        return None
    found = {"rope_type": kind, "factor": keys.number("rope.scaling.factor", linear or None)}
    if kind == "yarn":
        # Of the architectures that are read, llama.cpp uses yarn_log_multiplier in deepseek2 and mistral3.
        found["original_max_position_embeddings"] = original
        for name in ("beta_fast", "beta_slow"):
            if given := keys.number(f"rope.scaling.yarn_{name}", 0):
                found[name] = given
        # Latent attention would have it in the scale of scores, too.
        latent = keys.number("attention.kv_lora_rank", 0)
        if not latent and (given := keys.number("rope.scaling.attn_factor", 0)):
            found["attn_factor"] = given
    return found
