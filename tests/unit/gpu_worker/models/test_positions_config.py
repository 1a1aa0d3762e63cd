"""Layers have the rotary embeddings and attention windows that transformers' code gives them."""

import sys
from pathlib import Path
from typing import Any

import pytest
import transformers

from gpu_worker.errors import ModelError
from gpu_worker.models.families import FAMILIES
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, EXPERTS, MODELS, USUAL
from tests.unit.gpu_worker.models.test_config import completed, read

WINDOWS = {"use_sliding_window": True, "sliding_window": 9, "num_hidden_layers": 6}
QUARTER = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
FORMS = dict((MODELS | ALIKE).values())
"""A configuration of each architecture."""

PASSED_OVER = {
    "Gemma3ForCausalLM": "each kind of layer has an object of its own, without the factor",
    "Olmo3ForCausalLM": "the same",
    "BailingHybridForCausalLM": "qk_rope_head_dim says how much is rotated, and config.json has both",
}
"""Families that know how much is rotated, whatever the factor says."""


def rotation(architecture: str) -> Any:
    """transformers' class of the plain rotary embedding of an architecture. None: it has none of its own."""
    code = vars(sys.modules[getattr(transformers, architecture).__module__])
    found = (each for each in code.values() if hasattr(each, "compute_default_rope_parameters"))
    return next(found, None)


@pytest.mark.parametrize("architecture", [name for name in FAMILIES if rotation(name)])
def test_plain_embeddings_are_partial_where_transformers_has_them_so(
    tmp_path: Path, architecture: str
) -> None:
    """Elsewhere it passes over the factor: what the model was trained with is not known."""
    kind = getattr(transformers, architecture)
    others = ("seed", "rope_scaling", "rope_parameters", "original_max_position_embeddings")
    given = {key: value for key, value in FORMS[architecture].items() if key not in others}
    sizes = USUAL | {"hidden_size": 64, "architectures": [architecture]} | given
    values = completed(kind, sizes | {"rope_parameters": dict(QUARTER)})
    whole = read(tmp_path, completed(kind, sizes))
    if not any(rope.rotary_dim for rope in whole.ropes):
        pytest.skip("no rotary embeddings")
    config = kind.config_class.from_dict(values)
    kinds = {"layer_type": "full_attention"} if "full_attention" in config.rope_parameters else {}
    frequencies, _ = rotation(architecture).compute_default_rope_parameters(config, **kinds)
    if 2 * len(frequencies) < whole.head_dim or architecture in PASSED_OVER:
        assert {rope.rotary_dim for rope in read(tmp_path, values).ropes} <= {0, 2 * len(frequencies)}
        return
    with pytest.raises(ModelError, match=r"partial_rotary_factor of 0\.25 is not supported in this family"):
        read(tmp_path, values)


@pytest.mark.parametrize("changes", [{}, {"no_rope_layer_interval": 2}, {"no_rope_layers": None}], ids=str)
@pytest.mark.parametrize("windows", [{}, WINDOWS])
def test_layers_without_rotary_embeddings_by_their_interval(
    tmp_path: Path, changes: dict[str, Any], windows: dict[str, Any]
) -> None:
    kind = transformers.SmolLM3ForCausalLM
    values = USUAL | {"architectures": ["SmolLM3ForCausalLM"], "num_hidden_layers": 6} | windows | changes
    ours = read(tmp_path, values)
    assert ours == read(tmp_path, completed(kind, values))
    assert not ours.ropes[3].rotary_dim
    assert ours.ropes[4].rotary_dim


@pytest.mark.parametrize("last", [0, 2, 4, 28])
def test_windows_of_qwen_2_moe_where_nothing_names_the_layers(tmp_path: Path, last: int) -> None:
    kind = transformers.Qwen2MoeForCausalLM
    values = USUAL | EXPERTS | {"architectures": ["Qwen2MoeForCausalLM"], "max_window_layers": last} | WINDOWS
    ours = read(tmp_path, values)
    assert ours == read(tmp_path, completed(kind, values))
    assert ours.windows == tuple(9 if layer % 2 == 0 and layer < last else 0 for layer in range(6))


@pytest.mark.parametrize(
    ("architecture", "window", "rotated"),
    [
        ("Exaone4ForCausalLM", 9, False),
        ("Exaone4ForCausalLM", None, True),
        ("Cohere2ForCausalLM", 9, False),
        ("Cohere2ForCausalLM", None, False),
    ],
)
def test_layers_with_full_attention_alone(
    tmp_path: Path, architecture: str, window: int | None, rotated: bool
) -> None:
    """EXAONE 4 rotates them if there is no window at all, Cohere 2 never does."""
    kinds = {"layer_types": ["full_attention"] * 3, "sliding_window": window}
    ours = read(tmp_path, USUAL | {"architectures": [architecture]} | kinds)
    assert not any(ours.windows)
    assert [rope.rotary_dim > 0 for rope in ours.ropes] == [rotated] * 3
