"""Checkpoint formats: which are read, how much is dequantized, and what is refused."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gpu_worker.errors import ModelError
from gpu_worker.kernels.products import FP4
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.checkpoint import open_checkpoint
from gpu_worker.models.formats import read_format
from gpu_worker.models.formats.packed import Packed
from gpu_worker.models.formats.stored import StoredWeight
from gpu_worker.models.load import load_model
from gpu_worker.models.values import Values
from gpu_worker.models.weights import Weights
from ops.model_directory.files import MODELOPT
from tests.support import checkpoints
from tests.support.checkpoints import Encoder
from tests.unit.gpu_worker.behaviour.test_checkpoint_formats import CASES, GPTQ, GROUP, compressed
from tests.unit.gpu_worker.behaviour.test_families import GPT, random_model

CPU = torch.device("cpu")
FP8 = {"quant_method": "fp8"}
NAME = "model.layers.0.mlp.up_proj."


@pytest.mark.parametrize("name", CASES)
def test_any_rectangle_of_a_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each is what the format's own description says, bit by bit, also if it is dequantized in pieces."""
    for module in ("checkpoint", "weights"):
        monkeypatch.setattr(f"gpu_worker.models.{module}.PIECE", 100)
    _, encoder, config = CASES[name]
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(3))
    tensors, meant = encoder(weight)
    assert 0 < (meant - weight).norm() < 0.25 * weight.norm()
    save_file(
        {f"one.{end}": one.contiguous() for end, one in tensors.items()}, tmp_path / "model.safetensors"
    )
    form = read_format(Values(tmp_path / "config.json", {"quantization_config": config}))
    with open_checkpoint(tmp_path, form) as checkpoint:
        weights = Weights(checkpoint, torch.float32, CPU)
        assert torch.equal(weights.read("one.weight", 48, 64), meant)
        assert checkpoint.unread() == []
        for rows, columns in (
            (slice(0, 1), slice(0, 64)),
            (slice(7, 30), slice(3, 5)),
            (slice(40, 48), slice(21, 64)),
        ):
            part = weights._merge([("one.weight", 48, [rows, rows])], (64,), columns)
            assert torch.equal(part, torch.cat([meant[rows, columns]] * 2))


def test_scales_of_fp4_that_are_too_small() -> None:
    """They do no harm if their numbers are zeros. Otherwise back ends of fp4 do not keep the weight."""
    bits = torch.randint(1, 8, (3, 64), generator=torch.Generator().manual_seed(0))
    bits[1, 32:] = 0
    words = (bits[:, ::2] | bits[:, 1::2] << 4).to(torch.uint8)
    scales = torch.full((3, 2), 0.25)
    scales[1, 1] = 2.0**-127
    weight = StoredWeight(Packed(words, 4, 64, table=FP4), scales, (1, 32))
    found = weight.fp4_scales(slice(0, 3), slice(0, 64))
    assert found is not None
    assert found.tolist() == [[0.25, 0.25], [0.25, 0.0], [0.25, 0.25]]
    scales[2, 0] = 2.0**-127
    assert weight.fp4_scales(slice(0, 3), slice(0, 64)) is None
    assert weight.fp4_scales(slice(0, 2), slice(0, 64)) is not None


def saved(folder: Path, encoder: Encoder, config: dict[str, Any]) -> Path:
    """A quantized Llama."""
    random_model("LlamaForCausalLM", {}).save_pretrained(folder / "source")
    directory, _ = checkpoints.write(folder / "source", folder, encoder, config)
    return directory


def change(directory: Path, **tensors: Any) -> None:
    """Other tensors of the product `NAME`; None: none."""
    path = directory / "model.safetensors"
    found = load_file(path) | {NAME + end: tensor for end, tensor in tensors.items()}
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, path)


def test_the_log_says_how_much_memory_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = saved(tmp_path, checkpoints.fp8(1), FP8)
    # Scales of activations, which are not quantized, and a bias that other tools write for products without.
    change(directory, input_scale=torch.ones(()), bias=torch.zeros(48))
    caplog.set_level(logging.INFO, logger="gpu_worker")
    load_model(directory, CPU, ReferenceKernels(), torch.bfloat16)
    assert "fp8: 0.0 MiB of quantized weights are 0.0 MiB in bfloat16, before the back end" in caplog.text
    assert "0 % stay as they are, the others are dequantized" in caplog.text


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"weight_scale": None}, f"tensor {NAME}weight_scale is missing"),
        (
            {"weight_scale": torch.ones(3)},
            rf"tensor {NAME}weight_scale has shape \[3\], .*\[48, 32\] mean \[48, 1\]",
        ),
        (
            {"weight": torch.zeros(47, 32).to(checkpoints.FP8), "weight_scale": torch.ones(())},
            r"shape \[47, 32\]",
        ),
        ({"weight": None}, f"tensor {NAME}weight is missing"),
        ({"bias": torch.ones(48)}, f"does not account for tensor {NAME}bias"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, tensors: dict[str, Any], message: str) -> None:
    directory = saved(tmp_path, checkpoints.fp8(1), FP8)
    change(directory, **tensors)
    with pytest.raises(ModelError, match=message) as caught:
        load_model(directory, CPU, ReferenceKernels(), torch.float32)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensors", "message"),
    [
        ("gptq, experts", {"qzeros": None}, f"tensor {NAME}qzeros is missing"),
        (
            "gptq, experts",
            {"scales": torch.ones(3, 48)},
            rf"tensor {NAME}scales has shape \[48, 3\], .* mean \[48, 4\]",
        ),
        ("gptq, experts", {"qweight": torch.zeros(4, 48)}, f"tensor {NAME}qweight is of type float32"),
        ("gptq, experts", {"g_idx": torch.full((32,), 4).int()}, f"tensor {NAME}g_idx: a group of 8 inputs"),
        ("gptq, experts", {"qzeros": torch.tensor(0)}, f"tensor {NAME}weight: its gptq, 4 bits is not under"),
        ("nvfp4", {"weight_packed": torch.zeros(3).byte()}, f"tensor {NAME}weight: its nvfp4.* not under"),
        ("pack-quantized", {"weight_shape": None}, f"tensor {NAME}weight_shape is missing"),
        (
            "pack-quantized",
            {"weight_shape": torch.tensor([48, 33])},
            rf"tensor {NAME}weight_packed has shape \[48, 4\], not that of \[48, 33\]",
        ),
        ("bitsandbytes", {"weight.absmax": None}, f"tensor {NAME}weight.absmax is missing"),
        (
            "bitsandbytes",
            {"weight": torch.zeros(8, 1).byte()},
            rf"tensor {NAME}weight: a weight \[48, 32\] of 4 bits has not 8 bytes, in blocks of 8",
        ),
        (
            "bitsandbytes",
            {"weight.quant_state.bitsandbytes__nf4": torch.zeros(3).byte()},
            f"tensor {NAME}weight.quant_state is not understood",
        ),
        ("bitsandbytes", {"weight.quant_map": torch.zeros(8)}, "weight.quant_map has not 16 numbers"),
        ("bitsandbytes", {"weight.absmax": torch.zeros(192).byte()}, "weight.nested_absmax is missing"),
        ("nvfp4", {"weight_scale": None}, f"tensor {NAME}weight_scale is missing"),
        ("nvfp4", {"weight_global_scale": None}, f"tensor {NAME}weight_global_scale is missing"),
    ],
)
def test_tensors_of_other_formats_that_do_not_fit_are_named(
    tmp_path: Path, name: str, tensors: dict[str, Any], message: str
) -> None:
    _, encoder, config = CASES[name]
    directory = saved(tmp_path, encoder, config)
    change(directory, **tensors)
    with pytest.raises(ModelError, match=message):
        load_model(directory, CPU, ReferenceKernels(), torch.float32)


WEIGHTS = f"config_groups.{GROUP}.weights"
WEIGHT = {"num_bits": 8, "strategy": "group"}
SIZES = [("a", 32), ("b", 64)]


def rotated(*places: str) -> dict[str, Any]:
    """`transform_config` of weights, or activations, that are multiplied with a Hadamard matrix."""
    apply = [{"targets": ["Linear"], "location": place, "inverse": False} for place in places]
    return {"config_groups": {"R4": {"type": "hadamard", "apply": apply, "randomize": False}}}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("fp8", "quantization_config: an object is needed, not 'fp8'"),
        ({}, "quantization_config.quant_method: None is not supported"),
        ({"quant_method": "hqq"}, "quantization_config.quant_method: 'hqq' is not supported"),
        (FP8 | {"fmt": "e3m4"}, "quantization_config.fmt: 'e3m4' is not supported"),
        (FP8 | {"weight_block_size": [128]}, "quantization_config.weight_block_size: two positive integers"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quantization_config.quant_algo: 'W4A8'"),
        (GPTQ | {"bits": 3}, "quantization_config.bits: 3 is not supported"),
        (GPTQ | {"checkpoint_format": "marlin"}, "quantization_config.checkpoint_format: 'marlin'"),
        (GPTQ | {"dynamic": {"-:a": {}, "+:b": {"bits": 8}}}, r"quantization_config.dynamic: '\+:b'"),
        (GPTQ | {"group_size": 0}, "group_size: a positive integer is needed, not 0"),
        ({"quant_method": "awq", "version": "gemv"}, "quantization_config.version: 'gemv'"),
        (compressed("marlin-24", strategy="channel"), "quantization_config.format: 'marlin-24'"),
        (compressed("int-quantized", strategy="token"), f"quantization_config.{WEIGHTS}.strategy: 'token'"),
        (compressed("pack-quantized", num_bits=3), f"quantization_config.{WEIGHTS}.num_bits: 3"),
        (compressed("nvfp4-pack-quantized", group_size=32), f"quantization_config.{WEIGHTS}.group_size: 32"),
        (compressed("int-quantized", num_bits=4), f"quantization_config.{WEIGHTS}.num_bits: 4"),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
            | {"quantized_layers": {"lm_head": {"quant_algo": "FP8"}, "a.b": {"quant_algo": "INT4_AWQ"}}},
            r"quantization_config\.quantized_layers\.a\.b\.quant_algo: 'INT4_AWQ' is not supported",
        ),
        (
            compressed("int-quantized", strategy="channel")
            | {"config_groups": {each: {"weights": WEIGHT | {"group_size": size}} for each, size in SIZES}},
            r"config_groups: groups that differ in size are not supported \(int-quantized, int-quantized\)",
        ),
        (
            compressed("int-quantized", strategy="channel")
            | {"transform_config": rotated("weight_input", "input")},
            "transform_config: 'input': activations are not transformed",
        ),
        (
            compressed("int-quantized", strategy="channel")
            | {"transform_config": {"config_groups": {"a": 1}}},
            "a: an object is needed, not 1",
        ),
        (
            compressed("dense") | {"config_groups": {"a": {}}},
            r"config_groups\.a\.weights: an object is needed",
        ),
    ],
)
def test_another_format_is_refused_with_its_key(config: Any, message: str) -> None:
    with pytest.raises(ModelError, match=rf"config\.json: .*{message}") as caught:
        read_format(Values(Path("config.json"), {"quantization_config": config}))
    assert "\n" not in str(caught.value)


def test_weights_may_have_been_transformed() -> None:
    config = compressed("int-quantized", strategy="channel")
    for transforms in ({}, rotated("weight_input", "weight_output")):
        changed = {"quantization_config": config | {"transform_config": transforms}}
        assert read_format(Values(Path("config.json"), changed)) is not None


def test_bytes_of_two_types_are_told_by_their_tensors() -> None:
    groups = [("float-quantized", "tensor"), ("int-quantized", "channel")]
    config = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "config_groups": {
            kind: {"format": kind, "weights": {"num_bits": 8, "strategy": strategy}}
            for kind, strategy in groups
        },
    }
    form = read_format(Values(Path("config.json"), {"quantization_config": config}))
    assert form is not None
    for kind in (torch.int8, torch.float8_e4m3fn):
        tensors = {"weight": torch.tensor([[2, 4]]).to(kind), "weight_scale": torch.tensor([[0.5]])}
        assert (found := form.weight("a.", tensors)) is not None
        assert found.part(slice(0, 1), slice(0, 2), torch.device("cpu")).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    "config",
    [
        None,
        {"kv_cache_scheme": {"num_bits": 8}},
        {"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8}},
    ],
)
def test_plain_weights(config: Any) -> None:
    assert read_format(Values(Path("config.json"), {"quantization_config": config})) is None


def test_model_optimizer_describes_weights_in_a_file_beside(tmp_path: Path) -> None:
    """So NVIDIA's own checkpoints had it before `quantization_config`, which comes first where both are."""
    kinds = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (tmp_path / MODELOPT).write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": kinds}))
    values = Values(tmp_path / "config.json", {})
    assert (form := read_format(values)) is not None
    assert form.name == "modelopt NVFP4"
    assert read_format(values.but("quantization_config", FP8)) == read_format(
        Values(Path("config.json"), {"quantization_config": FP8})
    )


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"quantization": {"quant_algo": "INT4_AWQ"}}, "quant_algo: 'INT4_AWQ' is not supported"),
        ({"quantization": []}, "quantization: an object is needed"),
        ([], "is not a JSON object"),
    ],
)
def test_the_file_beside_is_named(tmp_path: Path, written: Any, message: str) -> None:
    (tmp_path / MODELOPT).write_text(json.dumps(written))
    with pytest.raises(ModelError, match=rf"hf_quant_config\.json\b.*{message}"):
        read_format(Values(tmp_path / "config.json", {}))


@pytest.mark.parametrize("kinds", [{}, {"quant_algo": None, "kv_cache_quant_algo": "FP8"}])
def test_the_file_beside_may_be_of_keys_and_values_alone(tmp_path: Path, kinds: Any) -> None:
    (tmp_path / MODELOPT).write_text(json.dumps({"quantization": kinds}))
    assert read_format(Values(tmp_path / "config.json", {})) is None


def test_a_family_with_weights_as_in_out_has_no_quantized_weights(tmp_path: Path) -> None:
    random_model("GPT2LMHeadModel", GPT).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": FP8}))
    with pytest.raises(ModelError, match=r"config\.json: quantization_config: .*GPT2LMHeadModel"):
        load_model(tmp_path, CPU, ReferenceKernels(), torch.float32)


def test_rules_that_override_nothing() -> None:
    """As in Qwen 3.5: rules without content, and rules that leave out what is not quantized."""
    rules = {"lm_head": {}, "model.language_model.embed_tokens": {}, "-:.*attn.*": {}, "-:.*mtp.*": {}}
    values = Values(Path("config.json"), {"quantization_config": GPTQ})
    ruled = Values(Path("config.json"), {"quantization_config": GPTQ | {"dynamic": rules}})
    assert read_format(ruled) == read_format(values)
