"""Scaled angles: those of transformers, and factors that it does not know."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from gpu_worker.errors import ModelError
from gpu_worker.models.rope import RopeConfig, Yarn, read_rope, rotary_tables
from gpu_worker.models.values import Values

CPU = torch.device("cpu")
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32_768}
DEVSTRAL = YARN | {
    **{"factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 4.0, "beta_slow": 1.0},
    **{"mscale": 1.0, "mscale_all_dim": 0.0, "llama_4_scaling_beta": 0},
}
R1_0528_QWEN3_8B = YARN | {"attn_factor": 0.8782488562869419}


def read(given: dict[str, Any], scales_queries: bool = False) -> RopeConfig:
    values = Values(Path("config.json"), {"rope_parameters": given})
    return read_rope(values, "rope_parameters", 128, 1e4, 131_072, scales_queries)


def test_a_growth_of_zero_is_none() -> None:
    rope = read(DEVSTRAL, scales_queries=True)
    assert (rope.query_growth, rope.query_stretch) == (0.0, 1)
    known = {key: value for key, value in DEVSTRAL.items() if "llama_4" not in key}
    theirs = LlamaConfig(head_dim=128, max_position_embeddings=262_144, rope_parameters=known)
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](theirs, CPU)
    tables = rotary_tables(rope, 128, 64, CPU)
    angles = torch.outer(torch.arange(64).float(), frequencies)
    assert factor == pytest.approx(1.4158883)
    assert tables.query_scales is None
    torch.testing.assert_close(tables.cos, angles.cos() * factor)
    torch.testing.assert_close(tables.sin, angles.sin() * factor)


def test_the_factor_of_deepseek_r1_0528_qwen3_8b() -> None:
    """It takes away what YaRN would multiply."""
    plain, scaled = read(YARN).scaling, read(R1_0528_QWEN3_8B).scaling
    assert isinstance(plain, Yarn)
    assert isinstance(scaled, Yarn)
    assert plain.attention_factor == pytest.approx(1.1386294)
    assert scaled.attention_factor == pytest.approx(1.0)
    given = read(R1_0528_QWEN3_8B | {"attention_factor": 2.0}).scaling
    assert isinstance(given, Yarn)
    assert given.attention_factor == pytest.approx(2 * 0.8782488562869419)


@pytest.mark.parametrize("changes", [{"rope_type": "linear"}, {"rope_type": "default"}], ids=str)
def test_that_factor_beside_other_scalings(changes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="rope_parameters: 'attn_factor' is not understood"):
        read(R1_0528_QWEN3_8B | changes)
