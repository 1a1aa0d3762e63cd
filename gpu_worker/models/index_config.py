"""Indexers of sparse attention in config.json: sizes, and layers with an indexer."""

from dataclasses import dataclass

from gpu_worker.models.values import Values


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """Indexers of sparse attention, with DeepSeek's names (DeepSeek-V3.2, section 2.1)."""

    top_k: int
    """Number of tokens that a token attends to."""
    heads: int
    """Number of index queries of a token."""
    head_dim: int
    """Size of an index key, of which each token has one. Its first `qk_rope_head_dim` dimensions are
    rotated."""
    interleaved: bool
    """Rotated pairs are (2i, 2i + 1) instead of (i, i + qk_rope_head_dim / 2)."""
    layers: tuple[int, ...]
    """Layers with an indexer. A layer without one attends to the tokens that the last indexer before it has
    selected."""


def read_index(values: Values, layers: int) -> IndexConfig:
    """The indexers that config.json describes. Raises `ModelError` with the key at fault."""
    rotated, size = values.positive("head_dim"), values.positive("index_head_dim")
    if size < rotated:
        raise values.wrong("index_head_dim", f"{size} is less than qk_rope_head_dim, {rotated}")
    values.positive("q_lora_rank")  # from which index queries are computed
    return IndexConfig(
        values.positive("index_topk"),
        values.positive("index_n_heads"),
        size,
        values.flag("indexer_rope_interleave"),
        _layers(values, layers),
    )


def _layers(values: Values, layers: int) -> tuple[int, ...]:
    """Numbers of the layers that have an indexer.

    `indexer_types` calls them full, and `index_topk_pattern` F. Without either key they are all layers before
    layer `index_skip_topk_offset` - 1, and from this one on each `index_topk_freq`-th.
    """
    key = "indexer_types" if values.get("indexer_types") else "index_topk_pattern"
    kinds = values.get(key)
    if kinds is None:
        every, offset = values.positive("index_topk_freq", 1), values.count("index_skip_topk_offset", 2)
        kinds = ["full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in range(layers)]
    known = isinstance(kinds, list | str) and all(kind in ("full", "shared", "F", "S") for kind in kinds)
    if not known or len(kinds) != layers or kinds[0] not in ("full", "F"):
        raise values.wrong(
            key, f"full or shared for each of {layers} layers is needed, and full for the first"
        )
    return tuple(layer for layer, kind in enumerate(kinds) if kind in ("full", "F"))
