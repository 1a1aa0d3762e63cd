"""Which layers of a config.json have indexers, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from gpu_worker.errors import ModelError
from gpu_worker.models.index_config import read_index
from gpu_worker.models.values import Values

USUAL = {"head_dim": 8, "q_lora_rank": 20, "index_topk": 16, "index_n_heads": 4, "index_head_dim": 32}


def read(**values: Any) -> Any:
    return read_index(Values(Path("config.json"), USUAL | values), 6)


@pytest.mark.parametrize(
    ("values", "layers"),
    [
        ({}, (0, 1, 2, 3, 4, 5)),
        ({"indexer_types": ["full", "shared"] * 3}, (0, 2, 4)),
        ({"index_topk_pattern": "FSSFFS"}, (0, 3, 4)),
        ({"index_topk_freq": 2}, (0, 1, 3, 5)),
        ({"index_topk_freq": 3, "index_skip_topk_offset": 1}, (0, 3)),
        ({"index_topk_freq": 4, "indexer_types": ["full"] * 6}, (0, 1, 2, 3, 4, 5)),
    ],
)
def test_layers_with_an_indexer(values: dict[str, Any], layers: tuple[int, ...]) -> None:
    """As transformers' configuration of GLM 5 has them, too."""
    from transformers import GlmMoeDsaConfig

    assert read(**values).layers == layers
    theirs = GlmMoeDsaConfig(num_hidden_layers=6, **values).indexer_types
    assert tuple(number for number, kind in enumerate(theirs) if kind == "full") == layers


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"indexer_types": ["shared"] * 6}, "indexer_types: full or shared for each of 6 layers"),
        ({"indexer_types": ["full"] * 5}, "indexer_types: full or shared for each of 6 layers"),
        ({"indexer_types": 6}, "indexer_types: full or shared"),
        ({"index_topk_pattern": "FSX"}, "index_topk_pattern: full or shared"),
        ({"index_head_dim": 6}, "index_head_dim: 6 is less than qk_rope_head_dim, 8"),
        ({"index_topk": 0}, "index_topk: a positive integer"),
        ({"q_lora_rank": None}, "q_lora_rank: a positive integer"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        read(**values)
