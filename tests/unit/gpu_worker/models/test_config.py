"""config.json means to us what it means to transformers, whatever keys are missing in it."""

import json
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.activations import ACT2FN

from gpu_worker.errors import ModelError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.config import ModelConfig, read_config
from gpu_worker.models.families import FAMILIES
from gpu_worker.models.families.family import OPTIONAL
from gpu_worker.models.rope import Linear, Yarn
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, DEEPSEEK, KIMI, MODELS, USUAL

SIZES: dict[str, dict[str, Any]] = {
    "DeepseekV2ForCausalLM": {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1},
    "Dots1ForCausalLM": {"n_routed_experts": 8, "num_experts_per_tok": 2},
    "Glm4MoeForCausalLM": {"head_dim": 128},
}
"""What transformers' own configuration lacks, though no model can be without."""
EXCEPT = {
    "original_max_position_embeddings": "rope_parameters has the number, too",
    "qk_rope_head_dim": "head_dim has the number, too",
    "shared_intermediate_size": "intermediate_size has another meaning then, and tensors have another shape",
    "layer_types": "of three layers OLMo Hybrid's last one has attention then, and tensors have other names",
}
"""Keys that may be read otherwise if they are missing, and why: no checkpoint is misread."""


def read(directory: Path, values: dict[str, Any]) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(values))
    return read_config(directory)


def completed(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    """config.json with all keys that transformers knows, from one that lacks some of them."""
    config = kind.config_class.from_dict(deepcopy(values))
    known: dict[str, Any] = json.loads(config.to_json_string(use_diff=False), object_hook=plain)
    return known | {"architectures": values["architectures"]}


def plain(found: dict[str, Any]) -> Any:
    """transformers writes the infinite as an object."""
    return float("inf") if found == {"__float__": "Infinity"} else found


def configurations() -> Iterator[Any]:
    for architecture in FAMILIES:
        yield pytest.param(architecture, SIZES.get(architecture, {}), id=architecture)
    for name, (architecture, changes) in (MODELS | ALIKE).items():
        known = getattr(transformers, architecture).config_class.__dataclass_fields__
        usual = {key: value for key, value in USUAL.items() if key in known}
        given = {key: value for key, value in changes.items() if key not in ("seed", "attention")}
        yield pytest.param(architecture, usual | given, id=name)


def without(whole: dict[str, Any], usual: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The configuration without each key, and without all that have the usual values."""
    fixed = ("architectures", "model_type")
    for key in whole.keys() - fixed:
        yield key, {other: value for other, value in whole.items() if other != key}
    yield (
        "all",
        {key: value for key, value in whole.items() if key in fixed or usual.get(key, ...) != value},
    )


@pytest.fixture
def unprinted(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers makes a text of each configuration for a log that nobody reads: a quarter of the time."""
    monkeypatch.setattr(transformers.PreTrainedConfig, "__repr__", object.__repr__)


@pytest.mark.usefixtures("unprinted")
@pytest.mark.parametrize(("architecture", "given"), list(configurations()))
def test_a_missing_key_has_the_value_of_transformers(
    tmp_path: Path, architecture: str, given: dict[str, Any]
) -> None:
    """Sizes may be refused where they are missing. Nothing else may mean something else."""
    kind, named = getattr(transformers, architecture), {"architectures": [architecture]}
    whole = completed(kind, given | named)
    assert read(tmp_path, whole)
    compared = compare(tmp_path, kind, without(whole, completed(kind, named)))
    assert not {key: found for key, found in compared.items() if found and key not in EXCEPT}
    assert len(compared) > len(whole) / 2


def compare(directory: Path, kind: Any, less: Iterable[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """By the missing key: what we read otherwise than after transformers has completed it. A key that either
    refuses to miss is left out."""
    found = {}
    for missing, values in less:
        try:
            whole = completed(kind, values)
        except Exception:  # of many kinds
            continue
        try:
            theirs, ours = read(directory, whole), read(directory, values)
        except ModelError:
            continue
        found[missing] = {
            each.name: (getattr(ours, each.name), getattr(theirs, each.name))
            for each in fields(ours)
            if getattr(ours, each.name) != getattr(theirs, each.name)
        }
    return found


CHANGED: dict[str, Any] = {
    **{"alibi_bias_max": 4.0, "attention_multiplier": 0.3, "attn_logit_softcapping": 2.0, "clip_qkv": 0.5},
    **{"embedding_multiplier": 2.0, "final_logit_softcapping": 2.0, "indexer_rope_interleave": True},
    **{"logit_scale": 0.3, "logits_scaling": 2.0, "no_rope_layer_interval": 2, "no_rope_layers": [1, 0, 1]},
    **{"norm_eps": 0.1, "query_pre_attn_scalar": 7, "residual_multiplier": 0.5, "rotary_dim": 4},
    "routed_scaling_factor": 3.0,
}
ELSEWHERE = {"MiniMaxM2ForCausalLM": {"rotary_dim"}}
"""Keys that transformers' class takes without naming them."""


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_keys_of_other_families_change_nothing(tmp_path: Path, architecture: str, interleaved: bool) -> None:
    """Those that transformers' class of the family does not have."""
    kind, changed = getattr(transformers, architecture), CHANGED | {"rope_interleave": interleaved}
    assert changed.keys() == OPTIONAL
    known = {*kind.config_class.__dataclass_fields__, *ELSEWHERE.get(architecture, ())}
    assert known >= {*FAMILIES[architecture].reads}
    given = dict((MODELS | ALIKE).values())[architecture]
    sizes = {key: value for key, value in given.items() if key not in ("seed", "attention")}
    values = completed(kind, USUAL | sizes | {"architectures": [architecture]})
    others = {key: value for key, value in changed.items() if key not in known | given.keys()}
    assert read(tmp_path, values | others) == read(tmp_path, values)


@pytest.mark.parametrize(
    ("architecture", "other"),
    [
        ("BloomForCausalLM", "gelu"),
        ("Lfm2ForCausalLM", "gelu"),
        ("Lfm2MoeForCausalLM", "gelu"),
        ("MptForCausalLM", "gelu_new"),
    ],
)
def test_an_activation_that_the_family_fixes(tmp_path: Path, architecture: str, other: str) -> None:
    """transformers' class does not read the key."""
    kind = getattr(transformers, architecture)
    assert "hidden_act" not in kind.config_class.__dataclass_fields__
    given = dict((MODELS | ALIKE).values())[architecture]
    sizes = {key: value for key, value in given.items() if key != "seed"}
    values = completed(kind, USUAL | sizes | {"architectures": [architecture]})
    assert read(tmp_path, values | {"hidden_act": other}) == read(tmp_path, values)


@pytest.mark.parametrize(
    ("architecture", "changes", "name", "value"),
    [
        ("DeepseekV3ForCausalLM", DEEPSEEK | {"rope_interleave": None}, "ropes.interleaved", False),
        ("KimiLinearForCausalLM", KIMI | {"moe_renormalize": None}, "experts.normalized", False),
        ("MistralForCausalLM", {"sliding_window": None}, "windows", (0, 0, 0)),
        ("Ministral3ForCausalLM", {"head_dim": None}, "head_dim", 8),
        ("MistralForCausalLM", {"num_key_value_heads": None}, "num_kv_heads", 4),
        ("Gemma2ForCausalLM", {"final_logit_softcapping": None}, "logit_softcap", 0.0),
        ("FalconForCausalLM", {"multi_query": None, "num_key_value_heads": None}, "num_kv_heads", 4),
    ],
)
def test_null_is_off(
    tmp_path: Path, architecture: str, changes: dict[str, Any], name: str, value: object
) -> None:
    """Even if a missing key would mean something."""
    values = USUAL | {"architectures": [architecture]} | changes
    found: Any = read(tmp_path, values)
    for each in name.split("."):
        found = getattr(found[0] if isinstance(found, tuple) else found, each)
    assert found == value


def test_a_null_rotary_embedding_is_the_usual_one(tmp_path: Path) -> None:
    """As in transformers, whether it is called by its older name or not."""
    values = USUAL | {"architectures": ["Ministral3ForCausalLM"]}
    usual = read(tmp_path, values).ropes
    assert isinstance(usual[0].scaling, Yarn)
    for key in ("rope_parameters", "rope_scaling"):
        assert read(tmp_path, values | {key: None}).ropes == usual
    plain = read(tmp_path, values | {"rope_scaling": {"type": "linear", "factor": 2.0}}).ropes
    assert plain[0].scaling == Linear(2.0)
    assert plain[0].theta == 1e4


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "gelu_fast", "gelu_python", "relu", "silu", "swish"])
def test_activations(tmp_path: Path, name: str) -> None:
    values = USUAL | {"architectures": ["GPTNeoXForCausalLM"], "hidden_act": name}
    numbers = torch.linspace(-6, 6, 99)
    expected = ACT2FN[name](numbers)
    kernels, found = ReferenceKernels(), numbers.clone()
    kernels.activate(found, read(tmp_path, values).activation)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)


def test_a_null_activation_is_refused(tmp_path: Path) -> None:
    values = USUAL | {"architectures": ["LlamaForCausalLM"], "hidden_act": None}
    with pytest.raises(ModelError, match="hidden_act: None is not one of silu"):
        read(tmp_path, values)
