"""Directories that are models, and those that are not."""

import json
import math
import os
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.checkpoint import open_checkpoint
from gpu_worker.models.config import read_config
from gpu_worker.models.load import load_model
from gpu_worker.models.rope import Linear

CPU = torch.device("cpu")


def load(directory, **kwargs):
    return load_model(directory, CPU, ReferenceKernels(), torch.float32, **kwargs)


def change_config(directory, **changes) -> None:
    path = directory / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def change_weights(directory, change) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def test_shards(make, saved) -> None:
    model = saved(shard_size="20KB")
    assert len(list(model.directory.glob("*.safetensors"))) > 2
    driver = make.Driver(make.runner(model.directory))
    assert driver.generate(driver.admit(0, [1, 2, 3]), 8) == make.expected(model.model, [1, 2, 3], 8)


def test_a_checkpoint_of_another_type(saved) -> None:
    directory = saved().directory
    change_weights(directory, lambda tensors: tensors.update({k: v.bfloat16() for k, v in tensors.items()}))
    change_config(directory, dtype="bfloat16")
    assert load_model(directory, CPU, ReferenceKernels()).dtype == torch.bfloat16
    assert load(directory).dtype == torch.float32


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_configuration_without_a_type(saved, kind) -> None:
    """As of gpt-oss: weights have the type that the checkpoint has, whatever its scales have."""
    directory = saved().directory
    change_weights(directory, lambda tensors: tensors.update({k: v.to(kind) for k, v in tensors.items()}))
    change_config(directory, dtype=...)
    assert load_model(directory, CPU, ReferenceKernels()).dtype == kind


def test_the_type_of_a_checkpoint(tmp_path) -> None:
    tensors = {
        "a.weight": torch.zeros(2).to(torch.float8_e4m3fn),
        "a.weight_scale_inv": torch.zeros(2).half(),
        "b.weight": torch.zeros(2, dtype=torch.int32),
        "c.weight": torch.zeros(2, dtype=torch.bfloat16),
        "d.weight": torch.zeros(2),
    }
    for left, kind in ((5, torch.bfloat16), (3, torch.float32)):
        save_file(dict(list(tensors.items())[:left]), tmp_path / "model.safetensors")
        with open_checkpoint(tmp_path) as checkpoint:
            assert checkpoint.dtype() == kind


def test_not_a_model(tmp_path) -> None:
    with pytest.raises(ModelError, match="not a model directory"):
        load(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{broken")
    with pytest.raises(ModelError, match=r"config\.json"):
        load(tmp_path)


def test_code_that_a_checkpoint_brings_along_is_left_alone(make, saved) -> None:
    model = saved()
    change_config(model.directory, auto_map={"AutoModelForCausalLM": "modeling.Own"}, trust_remote_code=True)
    (model.directory / "modeling.py").write_text("raise SystemExit('this was run')")
    driver = make.Driver(make.runner(model.directory))
    assert driver.generate(driver.admit(0, [1, 2, 3]), 8) == make.expected(model.model, [1, 2, 3], 8)


def test_an_unknown_family_is_named(saved) -> None:
    directory = saved().directory
    change_config(directory, architectures=["MambaForCausalLM"])
    with pytest.raises(ModelError, match="MambaForCausalLM is not supported"):
        load(directory)


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("LongformerForSequenceClassification", "it is no decoder with a linear classification head"),
        ("LlamaForTokenClassification", "it is no causal language model, no classifier and no known encoder"),
        ("BertForQuestionAnswering", "it is no causal language model, no classifier and no known encoder"),
    ],
)
def test_other_encoders_and_heads_are_refused_in_one_line(saved, architecture, reason) -> None:
    directory = saved().directory
    change_config(directory, architectures=[architecture], auto_map={"AutoModel": "modeling.Own"})
    with pytest.raises(ModelError, match=f"{architecture} is not supported: {reason}") as caught:
        load(directory)
    assert "\n" not in str(caught.value)


def test_a_classifier_needs_its_head(saved) -> None:
    directory = saved().directory
    change_config(directory, architectures=["LlamaForSequenceClassification"])
    with pytest.raises(ModelError, match=r"tensor score\.weight is missing"):
        load(directory)


def test_tokens_that_see_later_ones(saved) -> None:
    directory = saved().directory
    change_config(directory, is_causal=False)
    with pytest.raises(ModelError, match="is_causal: false is not supported"):
        load(directory)


def test_pickles_are_refused(saved) -> None:
    directory = saved().directory
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"pytorch_model\.bin.*never loaded"):
        load(directory)
    (directory / "pytorch_model.bin").unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        load(directory)


@pytest.mark.parametrize("size", [0, 5, 100, 0.5, 0.999])
def test_a_truncated_file(saved, size) -> None:
    path = saved().directory / "model.safetensors"
    os.truncate(path, int(path.stat().st_size * size) if isinstance(size, float) else size)
    with pytest.raises(ModelError, match="not a whole safetensors file") as caught:
        load(path.parent)
    assert "\n" not in str(caught.value)


def test_a_file_that_only_has_the_name(saved) -> None:
    path = saved().directory / "model.safetensors"
    path.write_bytes(b"PK\3\4" + bytes(1000))
    with pytest.raises(ModelError, match="not a whole safetensors file"):
        load(path.parent)


def test_a_pointer_to_a_file(saved) -> None:
    path = saved().directory / "model.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(ModelError, match=r"model\.safetensors: a pointer of Git LFS"):
        load(path.parent)


def test_a_missing_tensor(saved) -> None:
    directory = saved().directory
    name = "model.layers.1.mlp.up_proj.weight"
    change_weights(directory, lambda tensors: tensors.pop(name))
    with pytest.raises(ModelError, match=f"{name} is missing"):
        load(directory)


def test_a_tensor_of_another_shape(saved) -> None:
    directory = saved().directory
    name = "model.layers.0.self_attn.k_proj.weight"
    change_weights(directory, lambda tensors: tensors.update({name: tensors[name][:8].clone()}))
    with pytest.raises(ModelError, match=rf"{name} has shape \[8, 32\], config.json means \[16, 32\]"):
        load(directory)


def test_tensors_that_nobody_asks_for(saved) -> None:
    directory = saved(attention_bias=True).directory
    change_config(directory, attention_bias=False)
    with pytest.raises(ModelError, match=r"does not account for tensor .*bias"):
        load(directory)


def test_an_index_that_names_a_tensor_twice(saved) -> None:
    directory = saved(shard_size="20KB").directory
    index = directory / "model.safetensors.index.json"
    text = index.read_text()
    name = next(iter(json.loads(text)["weight_map"]))
    index.write_text(text.replace(f'"{name}":', f'"{name}": "model.safetensors", "{name}":'))
    with pytest.raises(ModelError, match=f"{name} comes twice"):
        load(directory)


def test_an_index_that_names_the_wrong_shard(saved) -> None:
    directory = saved(shard_size="20KB").directory
    index = directory / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    name, *_, other = values["weight_map"]
    values["weight_map"][name] = values["weight_map"][other]
    index.write_text(json.dumps(values))
    with pytest.raises(ModelError, match=f"says that it has tensor {name}, it has not"):
        load(directory)


def header_of(path) -> tuple[dict[str, dict], bytes]:
    """The header of a safetensors file, and what follows it."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


@pytest.mark.parametrize(
    "mislabel",
    [
        lambda tensor: tensor.update(dtype="F16"),
        lambda tensor: tensor.update(dtype="F128"),
        lambda tensor: tensor.update(shape=[*tensor["shape"], 2]),
        lambda tensor: tensor.update(shape=[-1]),
        lambda tensor: tensor.update(data_offsets=[0, 10**9]),
        lambda tensor: tensor.update(data_offsets=[8, 4]),
        lambda tensor: tensor.pop("dtype"),
        lambda tensor: tensor.clear(),
    ],
)
def test_a_header_that_contradicts_its_file(saved, mislabel) -> None:
    path = saved().directory / "model.safetensors"
    header, data = header_of(path)
    mislabel(header["model.norm.weight"])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    with pytest.raises(ModelError, match="not a whole safetensors file") as caught:
        load(path.parent)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_a_tensor_of_another_type(saved, dtype) -> None:
    directory = saved().directory
    name = "model.layers.1.mlp.up_proj.weight"
    change_weights(directory, lambda tensors: tensors.update({name: tensors[name].to(dtype)}))
    with pytest.raises(ModelError, match=f"{name} is of type"):
        load(directory)


def test_a_name_that_is_none_of_the_model_s(saved) -> None:
    directory = saved().directory
    change_weights(directory, lambda tensors: tensors.update({"NaN": torch.zeros(2)}))
    with pytest.raises(ModelError, match="does not account for tensor NaN"):
        load(directory)


def test_a_directory_in_place_of_the_file(saved) -> None:
    path = saved().directory / "model.safetensors"
    path.unlink()
    path.mkdir()
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        load(path.parent)


@pytest.mark.parametrize(
    "changes",
    [
        {"tie_word_embeddings": True},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}},
        {
            "tie_word_embeddings": True,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            },
        },
    ],
)
def test_shards_of_all_kinds(make, saved, changes) -> None:
    model = saved(shard_size="20KB", **changes)
    assert len(list(model.directory.glob("*.safetensors"))) > 2
    driver = make.Driver(make.runner(model.directory))
    assert driver.generate(driver.admit(0, [1, 2, 3]), 24) == make.expected(model.model, [1, 2, 3], 24)


def test_a_missing_shard(saved) -> None:
    directory = saved(shard_size="20KB").directory
    sorted(directory.glob("*.safetensors"))[1].unlink()
    with pytest.raises(ModelError, match="is missing"):
        load(directory)


def test_an_index_cannot_point_elsewhere(saved) -> None:
    directory = saved().directory
    index = {"weight_map": {"lm_head.weight": "../model.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="not a file of safetensors beside it"):
        load(directory)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "wide"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"hidden_act": ["silu"]}, "hidden_act"),
        ({"hidden_act": "relu"}, "hidden_act"),  # with gates
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "dynamic"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"vocab_size": ...}, "vocab_size"),
        ({"architectures": []}, "architectures"),
        ({"dtype": "int8"}, "dtype"),
    ],
)
def test_a_key_that_is_wrong_is_named(saved, changes, message) -> None:
    directory = saved().directory
    change_config(directory, **changes)
    with pytest.raises(ModelError, match=message):
        load(directory)


def test_both_ways_to_write_rope(saved) -> None:
    scaling = {"rope_type": "linear", "factor": 4.0}
    directory = saved(rope_parameters={**scaling, "rope_theta": 5e5}).directory
    new = read_config(directory).ropes[0]
    change_config(
        directory, rope_parameters=..., rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0}
    )
    assert read_config(directory).ropes == (new, new)
    assert (new.theta, new.scaling) == (5e5, Linear(4.0))
    change_config(directory, rope_scaling=None)
    assert read_config(directory).ropes[0].scaling is None


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"num_hidden_layers": 10**10}, "num_hidden_layers: 10000000000 is more than 4096"),
        ({"num_hidden_layers": 4096}, r"tensor model\.layers\.2\..* is missing"),
        ({"vocab_size": 10**15}, "vocab_size: 1000000000000000 is more than"),
        ({"vocab_size": 2**31 - 1}, r"has shape \[\d+, \d+\], config.json means \[2147483647,"),
        ({"intermediate_size": 2**31 - 1}, r"has shape .* config.json means \[.*2147483647"),
        ({"head_dim": 2**31 - 2}, "max_position_embeddings: rotary tables|has shape"),
        ({"num_attention_heads": 2**30, "num_key_value_heads": 2**30}, "has shape|rotary tables"),
        ({"max_position_embeddings": 2**31 - 1}, "max_position_embeddings: rotary tables for 2147483647"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps: a positive number is needed, not inf"),
        ({"architectures": ["GPTNeoForCausalLM"], "num_layers": 10**10}, "num_layers: 10000000000"),
    ],
)
def test_absurd_sizes_are_one_line_and_take_no_memory(saved, monkeypatch, changes, what) -> None:
    empty = torch.empty

    def allocate(*shape, **kwargs):
        assert _elements(shape) < 2**30
        return empty(*shape, **kwargs)

    directory = saved().directory
    change_config(directory, **changes)
    monkeypatch.setattr(torch, "empty", allocate)
    with pytest.raises(ModelError, match=what) as refused:
        load(directory)
    assert "\n" not in str(refused.value)


def _elements(shape) -> int:
    sizes = shape[0] if shape and isinstance(shape[0], tuple) else shape
    return math.prod(size for size in sizes if isinstance(size, int))


@pytest.mark.parametrize("length", [10 * 2**30, 2**63, 90 * 2**20])
def test_a_safetensors_header_of_gigabytes_is_one_line(saved, length) -> None:
    directory = saved().directory
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", length))
        file.truncate(20 * 2**30)  # takes no room on the disk
    with pytest.raises(ModelError, match="not a whole safetensors file") as refused:
        load(directory)
    assert "\n" not in str(refused.value)


def test_an_index_that_is_nested_without_end_is_one_line(saved) -> None:
    directory = saved().directory
    (directory / "model.safetensors.index.json").write_text("[" * 10**6)
    with pytest.raises(ModelError, match="nested too deeply"):
        load(directory)


def test_numbers_are_compared_in_little_memory(tmp_path) -> None:
    one = torch.randn(8192, 2048).bfloat16()
    other = one.clone()
    other[-1, -1] += 1
    save_file(
        {"one": one, "same": one.clone(), "other": other, "short": one[:-1].clone()},
        tmp_path / "model.safetensors",
    )
    del one, other

    def memory(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))

    with open_checkpoint(tmp_path) as checkpoint:
        checkpoint.equal("one", "one")
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        assert checkpoint.equal("one", "same")
        assert not checkpoint.equal("one", "other")
        assert not checkpoint.equal("one", "short")
        assert memory("VmHWM") - before < 16 << 20
