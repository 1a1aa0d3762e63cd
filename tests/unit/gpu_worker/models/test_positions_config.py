"""Layers have the rotary embeddings and attention windows that transformers' code gives them."""

import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import AutoConfig

from gpu_worker.errors import ModelError
from gpu_worker.models.families import FAMILIES
from gpu_worker.models.rope import rotary_tables
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


SOME = ["full_attention", "sliding_attention"] * 3


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_window_layers": 2},
        {"sliding_window_pattern": 3},
        {"use_sliding_window": False},
        {"sliding_window": None, "layer_types": ["full_attention"] * 6},
        {"layer_types": SOME, "sliding_window_pattern": 3, "max_window_layers": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("architecture", [name for name, family in FAMILIES.items() if family.windowed])
def test_windows_by_the_keys_that_transformers_reads(
    tmp_path: Path, architecture: str, changes: dict[str, Any]
) -> None:
    """A key that its class does not read changes nothing."""
    kind = getattr(transformers, architecture).config_class
    others = ("seed", "no_rope_layers")
    given = {key: value for key, value in FORMS[architecture].items() if key not in others}
    named = {"architectures": [architecture], "model_type": kind.model_type, "layer_types": None}
    ours = read(tmp_path, USUAL | EXPERTS | given | named | WINDOWS | changes).windows
    theirs = AutoConfig.from_pretrained(tmp_path)  # not of `kind` if a Mistral names its layers
    knows = "layer_types" in theirs.__dataclass_fields__
    types = theirs.layer_types if knows else ["sliding_attention"] * 6
    assert ours == tuple((kind == "sliding_attention") * (theirs.sliding_window or 0) for kind in types)


FADED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
FULL, SLIDING = {"rope_type": "default", "rope_theta": 7e4}, {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_theta": 7e4},
        {"rope_theta": 7e4, "rope_local_base_freq": 3e3},
        {"rope_theta": 7e4, "rope_scaling": FADED},
        {"rope_scaling": FADED | {"rope_theta": 6e4}},
        {"rope_parameters": {"full_attention": FULL}},
        {"rope_parameters": {"sliding_attention": SLIDING}, "rope_theta": 6e4},
        {"rope_parameters": {"sliding_attention": SLIDING, "full_attention": FULL}, "rope_scaling": FADED},
        {"rope_parameters": {"full_attention": None, "sliding_attention": SLIDING | {"rope_theta": 5e3}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "Olmo3ForCausalLM"])
def test_two_rotary_embeddings(tmp_path: Path, architecture: str, changes: dict[str, Any]) -> None:
    kind = getattr(transformers, architecture)
    values = USUAL | {"architectures": [architecture], "layer_types": SOME[:3]} | deepcopy(changes)
    ours = read(tmp_path, values)
    theirs = rotation(architecture)(kind.config_class.from_dict(deepcopy(values)))
    for name, rope in zip(SOME, ours.ropes, strict=False):
        expected = getattr(theirs, f"{name}_inv_freq")
        tables = rotary_tables(rope, ours.head_dim, 2, torch.device("cpu"))
        factor = getattr(theirs, f"{name}_attention_scaling")
        torch.testing.assert_close(tables.sin[1], expected.sin() * factor, atol=1e-6, rtol=1e-6)


def test_an_embedding_of_all_layers_that_are_alike(tmp_path: Path) -> None:
    """As early versions of transformers 5 wrote OLMo 3."""
    values = USUAL | {"architectures": ["Olmo3ForCausalLM"]}
    usual = read(tmp_path, values).ropes
    one = {"rope_theta": 500000.0, "rope_type": "default"}
    assert read(tmp_path, values | {"rope_parameters": one}).ropes == usual
    with pytest.raises(ModelError, match="rope_parameters: an object for each"):
        read(tmp_path, values | {"rope_parameters": one | {"rope_theta": 10000.0}})


@pytest.mark.parametrize("architecture", ["Gemma3ForCausalLM", "Olmo3ForCausalLM"])
def test_an_embedding_of_no_kind_of_layer_is_refused(tmp_path: Path, architecture: str) -> None:
    """transformers passes it over: what the model was trained with is not known."""
    with pytest.raises(ModelError, match="rope_parameters: an object for each of full_attention, sliding"):
        read(tmp_path, USUAL | {"architectures": [architecture], "rope_parameters": FADED})


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
