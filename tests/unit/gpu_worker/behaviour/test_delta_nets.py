"""OLMo Hybrid, Kimi Linear and Ling 3: files and configurations as they are published, beside those that
transformers writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.config import read_config
from gpu_worker.models.families import family_named, family_of
from gpu_worker.models.load import load_model
from tests.unit.gpu_worker.behaviour.test_families import MODELS, PROMPT, random_model
from tests.unit.gpu_worker.conftest import CPU, Driver, make_runner

ORDER = ("q", "k", "v")


def written(name: str, path: Path) -> dict[str, Any]:
    """The configuration of a model that transformers has written to `path`."""
    random_model(*MODELS[name]).save_pretrained(path)
    config: dict[str, Any] = json.loads((path / "config.json").read_text())
    return config


def publish(path: Path, own: Path, config: dict[str, Any], names: dict[str, str], sizes: list[int]) -> None:
    """The same model with other names of tensors, and with filters of queries, keys and values as long as
    these are."""
    tensors = load_file(own / "model.safetensors")
    for name in [name for name in tensors if name.endswith("q_conv1d.weight")]:
        each = [name.replace("q_conv1d", f"{one}_conv1d") for one in ORDER]
        whole = [row for one in each for row in tensors[one]]
        for one, size in zip(each, sizes, strict=True):
            tensors[one] = whole[0].new_tensor([whole.pop(0).tolist() for _ in range(size)])
    for old, new in names.items():
        found = [name for name in tensors if old in name]
        assert found
        for name in found:
            tensors[name.replace(old, new)] = tensors.pop(name)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors")


def answers(directory: Path) -> list[int]:
    driver = Driver(make_runner(directory, ReferenceKernels()))
    return driver.generate(driver.admit(0, PROMPT), 9)


def test_a_published_file_of_olmo_hybrid(tmp_path: Path) -> None:
    """transformers gives one of the norms in layers with attention another name than they have there."""
    own, published = tmp_path / "own", tmp_path / "published"
    names = {"layers.1.feedforward_layer_norm": "layers.1.post_attention_layernorm"}
    publish(published, own, written("OLMo Hybrid", own), names, [40, 40, 160])
    assert answers(published) == answers(own)


def test_a_published_file_of_kimi_linear(tmp_path: Path) -> None:
    own, published = tmp_path / "own", tmp_path / "published"
    config = written("Kimi Linear", own)
    for key in (
        *("layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim"),
        *("rms_norm_eps", "routed_scaling_factor", "moe_renormalize"),
    ):
        del config[key]
    given = {"full_attn_layers": [2], "kda_layers": [1, 3], "num_heads": 2, "head_dim": 20}
    config |= {"linear_attn_config": given | {"short_conv_kernel_size": 4}, "head_dim": 72}
    config |= {"mla_use_nope": True, "moe_router_activation_func": "sigmoid", "use_grouped_topk": True}
    config |= {"first_k_dense_replace": 1, "moe_layer_freq": 1, "rope_theta": 1e4, "rope_scaling": None}
    names = {"layers.0.block_sparse_moe.": "layers.0.mlp."}
    publish(published, own, config, names, [40, 40, 40])
    assert read_config(published) == read_config(own)
    assert answers(published) == answers(own)


def test_a_published_configuration_of_ling_3(tmp_path: Path) -> None:
    """The size of a head of its recurrent layers has the name that transformers gives to another one."""
    own, published = tmp_path / "own", tmp_path / "published"
    config = written("Ling 3", own)
    for key in (
        *("layer_types", "mlp_layer_types", "linear_head_dim", "linear_conv_kernel_dim"),
        *("kda_safe_gate", "kda_lower_bound", "rope_theta", "routed_scaling_factor", "num_shared_experts"),
        *("num_nextn_predict_layers", "rms_norm_eps"),
    ):
        del config[key]
    for ours, theirs in (
        ("num_experts_per_tok", "num_experts_per_token"),
        ("n_group", "num_expert_group"),
        ("norm_topk_prob", "moe_renormalize"),
        ("max_position_embeddings", "model_max_length"),
    ):
        config[ours] = config.pop(theirs)
    config |= {"head_dim": 20, "layer_group_size": 2, "first_k_dense_replace": 1, "score_function": "sigmoid"}
    config |= {"rope_parameters": None, "rope_scaling": None, "partial_rotary_factor": 0.5}
    publish(published, own, config, {}, [40, 40, 40])
    assert read_config(published) == read_config(own)
    theirs = transformers.BailingHybridConfig.from_pretrained(published)
    assert (theirs.linear_head_dim, theirs.layer_types[1]) == (20, "full_attention")
    assert theirs.mlp_layer_types == ["dense", "sparse", "sparse"]
    assert answers(published) == answers(own)


def test_filters_that_are_too_few(tmp_path: Path) -> None:
    own, published = tmp_path / "own", tmp_path / "published"
    publish(published, own, written("OLMo Hybrid", own), {}, [40, 40, 159])
    message = r"v_conv1d\.weight: 239 rows, config.json means 240"
    with pytest.raises(ModelError, match=message):
        load_model(published, CPU, ReferenceKernels())


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"rope_theta": None},
        {"rope_theta": None, "rope_parameters": None},
        {"rope_theta": 5e5},
        {"rope_theta": 5e5, "rope_parameters": {"rope_theta": None, "rope_type": "default"}},
        {"rope_theta": None, "rope_parameters": {"rope_type": "linear", "factor": 2.0}},
        {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    ],
)
def test_a_base_that_is_null_means_no_rotary_embedding(tmp_path: Path, keys: dict[str, Any]) -> None:
    config = written("OLMo Hybrid", tmp_path)
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | keys))
    theirs = transformers.OlmoHybridConfig.from_pretrained(tmp_path).rope_parameters["rope_theta"]
    ours = read_config(tmp_path).ropes[1]
    assert (ours.theta if ours.rotary_dim else None) == theirs


def test_sizes_that_olmo_hybrid_leaves_out(tmp_path: Path) -> None:
    config = written("OLMo Hybrid", tmp_path)
    for key in ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim"):
        del config[key]
    del config["linear_value_head_dim"], config["linear_allow_neg_eigval"], config["linear_conv_kernel_dim"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.OlmoHybridConfig.from_pretrained(tmp_path)
    ours = read_config(tmp_path).recurrence
    assert ours is not None
    assert (ours.key_heads, ours.heads) == (theirs.linear_num_key_heads, theirs.linear_num_value_heads)
    assert (ours.key_size, ours.value_size) == (theirs.linear_key_head_dim, theirs.linear_value_head_dim)
    assert (ours.taps, ours.update_scale) == (theirs.linear_conv_kernel_dim, 2.0)


@pytest.mark.parametrize("layers", [3, 9])
def test_layers_that_kimi_linear_leaves_out(tmp_path: Path, layers: int) -> None:
    config = written("Kimi Linear", tmp_path) | {"num_hidden_layers": layers}
    del config["layer_types"], config["mlp_layer_types"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.KimiLinearConfig.from_pretrained(tmp_path)
    ours = read_config(tmp_path)
    assert ours.recurrence is not None
    assert ours.experts is not None
    kinds = [
        "linear_attention" if each in ours.recurrence.layers else "full_attention" for each in range(layers)
    ]
    assert kinds == theirs.layer_types
    assert ["sparse" if each in ours.experts.layers else "dense" for each in range(layers)] == (
        theirs.mlp_layer_types
    )


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "OLMo Hybrid",
            {"hidden_act": "gelu"},
            "hidden_act: 'gelu' is not supported",
        ),
        (
            "OLMo Hybrid",
            {"output_gate_type": "sigmoid"},
            "output_gate_type: 'sigmoid' is not supported",
        ),
        (
            "Kimi Linear",
            {"linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 4]}},
            r"kda_layers: a list of numbers from 1 to 3 is needed, not \[1, 4\]",
        ),
        (
            "Kimi Linear",
            {"linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1]}},
            "kda_layers: neither it nor full_attn_layers has layer 3",
        ),
        ("Kimi Linear", {"linear_attn_config": {"num_heads": 0}}, "num_heads: a positive integer is needed"),
        ("Ling 3", {"kda_lower_bound": 0}, "kda_lower_bound: a negative number is needed, not 0"),
    ],
)
def test_configurations_that_make_no_sense(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    config = written(name, tmp_path) | changes
    config.pop("layer_types")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "key",
    [
        *("mla_use_nope", "moe_router_activation_func", "use_grouped_topk"),
        *("tie_word_embeddings", "kda_safe_gate"),
    ],
)
def test_another_arithmetic_is_not_passed_over(tmp_path: Path, key: str) -> None:
    other = {"mla_use_nope": False, "moe_router_activation_func": "softmax", "use_grouped_topk": False}
    config = written("Kimi Linear", tmp_path)
    assert family_of("KimiLinearForCausalLM", config) is not None
    config[key] = other.get(key, True)
    assert family_of("KimiLinearForCausalLM", config) is None
    family = family_named("KimiLinearForCausalLM")
    assert family is not None
    assert family.unlike(config) == [key]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=rf"unlike other models of its family in {key}"):
        load_model(tmp_path, CPU, ReferenceKernels())
