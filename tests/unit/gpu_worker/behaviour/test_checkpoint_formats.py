"""Quantized checkpoints: bit by bit the weights that they mean, and transformers' logits with these."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.cpu.kernels import KeptKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import scales_of
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kept import KeptReference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.load import load_model
from ops.model_directory.files import MODELOPT
from tests.support import checkpoints
from tests.support.checkpoints import Encoder
from tests.support.logits import watch_logits
from tests.support.native import with_team
from tests.support.ranks import Meeting, Thread, Together
from tests.unit.gpu_worker.behaviour.test_families import MODELS, PROMPT, check, random_model
from tests.unit.gpu_worker.conftest import Driver, make_runner, makers

GROUP = "group_0"


def compressed(kind: str, **weights: Any) -> dict[str, Any]:
    """`quantization_config` of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "symmetric": True, **weights}}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "config_groups": {GROUP: group},
        "ignore": ["lm_head"],
    }


BLOCKS = {"quant_method": "fp8", "weight_block_size": [10, 12], "activation_scheme": "dynamic"}
CASES: dict[str, tuple[str, Encoder, dict[str, Any]]] = {
    "fp8, squares, experts": ("Qwen3 MoE", checkpoints.fp8(10, 12, "weight_scale_inv"), BLOCKS),
    "fp8, squares, latent": ("DeepSeek V3", checkpoints.fp8(10, 12, "weight_scale_inv"), BLOCKS),
    "fp8, whole": ("Mixtral", checkpoints.fp8(), {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8, outputs, merged": ("Phi-3", checkpoints.fp8(1), {"quant_method": "fbgemm_fp8"}),
    "float-quantized": ("Qwen2", checkpoints.fp8(1), compressed("float-quantized", strategy="channel")),
    "float-quantized, squares": (
        "Llama",
        checkpoints.fp8(16, 8),
        compressed("float-quantized", strategy="block", block_structure=[16, 8]),
    ),
    "mxfp8-quantized": (
        "Qwen3",
        checkpoints.fp8(1, 32, powers=True),
        compressed("mxfp8-quantized", strategy="group", group_size=32),
    ),
    "int-quantized": ("Llama", checkpoints.int8(), compressed("int-quantized", strategy="channel")),
    "int-quantized, groups": (
        "Qwen2",
        checkpoints.int8(8, zeros=True),
        compressed("int-quantized", strategy="group", group_size=8, symmetric=False),
    ),
}

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 8, "sym": False, "desc_act": False}
CASES |= {
    "gptq, experts": ("Mixtral", checkpoints.gptq(), GPTQ),
    "gptq, order, merged": ("Phi-3", checkpoints.gptq(ordered=True), GPTQ | {"desc_act": True}),
    "gptq, 8 bits": ("Qwen3", checkpoints.gptq(8, -1), GPTQ | {"bits": 8, "group_size": -1}),
    "gptq, second version": (
        "Qwen2",
        checkpoints.gptq(symmetric=True, lower=0),
        GPTQ | {"sym": True, "checkpoint_format": "gptq_v2"},
    ),
    "awq, experts": ("Qwen3 MoE", checkpoints.awq(), {"quant_method": "awq", "bits": 4, "group_size": 8}),
    "awq, merged": ("Phi-3", checkpoints.awq(), {"quant_method": "awq", "group_size": 8, "version": "gemm"}),
}

CASES["mxfp4, stacked"] = (
    "gpt-oss",
    checkpoints.fp4("mxfp4"),
    {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
)
CASES |= {
    "fp8, squares, delta nets": ("Qwen3.5", checkpoints.fp8(10, 12, "weight_scale_inv"), BLOCKS),
    "awq, delta nets by head": ("Qwen3 Next", checkpoints.awq(), {"quant_method": "awq", "group_size": 8}),
    "fp8, squares, separate delta nets": ("OLMo Hybrid", checkpoints.fp8(10, 12, "weight_scale_inv"), BLOCKS),
    "pack-quantized, Kimi": (
        "Kimi Linear",
        checkpoints.pack_quantized(),
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=8),
    ),
    "fp8, squares, Ling": ("Ling 3", checkpoints.fp8(10, 12, "weight_scale_inv"), BLOCKS),
    "bitsandbytes, short convolutions": (
        "LFM2",
        checkpoints.bitsandbytes(),
        {"quant_method": "bitsandbytes"},
    ),
}
CASES |= {
    "fp8, state spaces": ("Nemotron 3", checkpoints.fp8(10, 12, "weight_scale_inv"), BLOCKS),
    "fp8, multipliers": ("Falcon H1", checkpoints.fp8(10, 12, "weight_scale_inv"), BLOCKS),
    "gptq, state spaces": ("Granite 4 H", checkpoints.gptq(), GPTQ),
    "fp8, squares, stacked": ("gpt-oss", checkpoints.fp8(10, 12, "weight_scale_inv"), BLOCKS),
    "fp8, outputs, stacked": ("gpt-oss", checkpoints.fp8(1), {"quant_method": "fbgemm_fp8"}),
}

FP4 = {"num_bits": 4, "type": "float"}
CASES |= {
    "pack-quantized": (
        "Mixtral",
        checkpoints.pack_quantized(),
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=8),
    ),
    "pack-quantized, zeros, merged": (
        "Phi-3",
        checkpoints.pack_quantized(zeros=True),
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=8, symmetric=False),
    ),
    "pack-quantized, order": (
        "Llama",
        checkpoints.pack_quantized(8, ordered=True),
        compressed("pack-quantized", num_bits=8, strategy="group", group_size=8, actorder="group"),
    ),
    "pack-quantized, outputs": (
        "Llama",
        checkpoints.pack_quantized(8, 0, zeros=True),
        compressed("pack-quantized", num_bits=8, strategy="channel", symmetric=False),
    ),
    "nvfp4": (
        "Qwen3 MoE",
        checkpoints.fp4(),
        compressed("nvfp4-pack-quantized", **FP4, strategy="tensor_group", group_size=16),
    ),
    "mxfp4": (
        "Qwen3",
        checkpoints.fp4("mxfp4"),
        compressed("mxfp4-pack-quantized", **FP4, strategy="group", group_size=32),
    ),
    "bitsandbytes": ("Mixtral", checkpoints.bitsandbytes(), {"quant_method": "bitsandbytes"}),
    "bitsandbytes, nested, merged": (
        "Phi-3",
        checkpoints.bitsandbytes(nested=True),
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ),
    "bitsandbytes, 8 bits": ("Qwen2", checkpoints.bitsandbytes_int8, {"quant_method": "bitsandbytes"}),
    "modelopt": ("Llama", checkpoints.fp4("modelopt"), {"quant_method": "modelopt", "quant_algo": "NVFP4"}),
    "modelopt, mixed": (
        "Qwen3.5",
        checkpoints.mixed(checkpoints.fp8(), checkpoints.fp4("modelopt"), checkpoints.fp8(1)),
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "quantized_layers": {
                "model.layers.0.linear_attn.out_proj": {"quant_algo": "FP8"},
                "model.layers.0.mlp.down_proj": {"quant_algo": "W4A16_NVFP4", "group_size": 16},
            },
        },
    ),
    "modelopt, its first versions": (
        "Qwen3",
        checkpoints.fp8(),
        {
            "config_groups": {GROUP: {"weights": {"dynamic": False, "num_bits": 8, "type": "float"}}},
            "quant_algo": "FP8",
            "kv_cache_scheme": "FP8",
        },
    ),
    "nvfp4 and float-quantized": (
        "Qwen3 MoE",
        checkpoints.mixed(checkpoints.fp4(), checkpoints.fp8(1)),
        {
            "quant_method": "compressed-tensors",
            "format": "mixed-precision",
            "config_groups": {
                "group_0": {
                    "format": "float-quantized",
                    "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
                },
                "group_1": {
                    "format": "nvfp4-pack-quantized",
                    "weights": {**FP4, "strategy": "tensor_group", "group_size": 16, "symmetric": True},
                },
            },
        },
    ),
}


BESIDE = "modelopt, in a file beside config.json"


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Write a case: the quantized directory, and the one with the weights that it means."""

    def write(name: str) -> tuple[Path, Path]:
        model, encoder, config = CASES[name]
        source = tmp_path / "source"
        random_model(*MODELS[model]).save_pretrained(source)
        write = checkpoints.write_stacked if model == "gpt-oss" else checkpoints.write
        return write(source, tmp_path, encoder, config)

    return write


@pytest.mark.parametrize("name", [*CASES, BESIDE])
def test_logits_equal_transformers_with_the_weights_that_are_meant(written: Any, name: str) -> None:
    stored, meant = written("modelopt" if name == BESIDE else name)
    if name == BESIDE:
        config = json.loads((stored / "config.json").read_text())
        (stored / MODELOPT).write_text(json.dumps({"quantization": config.pop("quantization_config")}))
        (stored / "config.json").write_text(json.dumps(config))
    theirs = AutoModelForCausalLM.from_pretrained(meant, attn_implementation="eager").eval()

    @torch.inference_mode()
    def logits(*tokens: int) -> torch.Tensor:
        found: torch.Tensor = theirs(torch.tensor([tokens])).logits[0]
        return found

    check(makers(ReferenceKernels()), SimpleNamespace(logits=logits, directory=stored), 0)


@pytest.mark.parametrize(
    "name",
    [
        "fp8, squares, experts",
        "fp8, squares, latent",
        "gptq, order, merged",
        "gptq, experts",
        "awq, experts",
        "nvfp4",
        "mxfp4, stacked",
        "fp8, squares, stacked",
    ],
)
def test_ranks_have_their_parts_of_the_weights_that_are_meant(written: Any, name: str) -> None:
    """Bit by bit the logits of ranks that read the parts of plain weights."""
    found = []
    for directory in written(name):
        ranks = Together(2, lambda ranks, of=directory: make_runner(of, ReferenceKernels(), ranks=ranks))
        seen, _ = [watch_logits(runner) for runner in ranks.runners]
        driver = Driver(ranks)
        driver.generate(driver.admit(0, PROMPT), 8)
        found.append(torch.stack(list(seen.values())))
    assert len(found[0]) == len(PROMPT) + 7
    assert torch.equal(found[0], found[1])


class Products:
    """Takes the weights of all products of a model, as the back end has them."""

    def linear(self, weight, bias=None, dtype=None, keeps_rows=False):
        self.take(weight, dtype != torch.float32)
        return super().linear(weight, bias, dtype, keeps_rows)

    def gated(self, weight, bias=None, activation="silu"):
        self.take(weight, True)
        return ReferenceKernels().gated(weight, bias, activation)


class Kept(Products, Int4Reference):
    def __init__(self):
        super().__init__()
        self.weights = []

    def take(self, weight, narrow):
        product = Int4Reference().linear(weight)
        self.weights.append(product.rows(torch.arange(len(weight))) if narrow else weight)


class Meant(Products, ReferenceKernels):
    def __init__(self):
        self.weights = []

    def take(self, weight, narrow):
        self.weights.append(weight)


WIDE = {"hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 128}
KEPT: dict[str, tuple[str, Encoder, dict[str, Any]]] = {
    "gptq": ("Mixtral", checkpoints.gptq(group=32, symmetric=True), GPTQ | {"group_size": 32, "sym": True}),
    "gptq, outputs": ("Phi-3", checkpoints.gptq(group=-1, symmetric=True), GPTQ | {"group_size": -1}),
    "pack-quantized": (
        "Qwen3",
        checkpoints.pack_quantized(group=64),
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=64),
    ),
    "gptq, zeros": ("Llama", checkpoints.gptq(group=32), GPTQ | {"group_size": 32}),
    "awq": ("Qwen3 MoE", checkpoints.awq(32), {"quant_method": "awq", "group_size": 32}),
    "awq, merged": ("Phi-3", checkpoints.awq(64), {"quant_method": "awq", "group_size": 64}),
}
SHIFTED = ("gptq, zeros", "awq", "awq, merged")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", KEPT)
def test_4_bits_are_kept(tmp_path: Path, name: str, count: int) -> None:
    """A back end of int4 rounds none of the weights again: merged, reordered, of experts or of ranks."""
    model, encoder, config = KEPT[name]
    architecture, changes = MODELS[model]
    random_model(architecture, changes | WIDE).save_pretrained(tmp_path / "source")
    stored, meant = checkpoints.write(tmp_path / "source", tmp_path, encoder, config)
    ranks = Thread(count - 1, count, Meeting(count))
    kept, plain = Kept(), Meant()
    for directory, kernels in ((stored, kept), (meant, plain)):
        load_model(directory, torch.device("cpu"), kernels, torch.float32, ranks=ranks)
    assert len(kept.weights) > 3 * 3
    for found, expected in zip(kept.weights, plain.weights, strict=True):
        most = 1e-6 if name in SHIFTED else 0  # zero points are added as float32
        torch.testing.assert_close(found, expected, atol=most, rtol=most)


BY_DEFAULT = KEPT | {
    "int-quantized": ("Llama", checkpoints.int8(), compressed("int-quantized", strategy="channel")),
    "int-quantized, experts": (
        "Qwen3 MoE",
        checkpoints.int8(),
        compressed("int-quantized", strategy="channel"),
    ),
    "bitsandbytes, 8 bits": CASES["bitsandbytes, 8 bits"],
    "fp8, outputs, merged": CASES["fp8, outputs, merged"],
    "fp8, whole": ("Llama", checkpoints.fp8(), {"quant_method": "fp8", "activation_scheme": "static"}),
    "fp8, squares, latent": CASES["fp8, squares, latent"],
}
PLAIN = ("fp8, squares, latent",)
"""Formats that no back end has: squares of 12 inputs."""
AS_CODES = {
    "fp8, squares": (
        "Qwen3 MoE",
        checkpoints.fp8(16, 32, "weight_scale_inv"),
        BLOCKS | {"weight_block_size": [16, 32]},
    ),
    "fp8, squares, state spaces": (
        "Nemotron H",
        checkpoints.fp8(16, 32, "weight_scale_inv"),
        BLOCKS | {"weight_block_size": [16, 32]},
    ),
    "mxfp8-quantized": CASES["mxfp8-quantized"],
    "int-quantized, groups": CASES["int-quantized, groups"],
    "gptq, 8 bits": CASES["gptq, 8 bits"],
    "gptq, order, merged": CASES["gptq, order, merged"],
    "pack-quantized, order": CASES["pack-quantized, order"],
    "nvfp4": CASES["nvfp4"],
    "mxfp4": CASES["mxfp4"],
    "mxfp4, stacked": CASES["mxfp4, stacked"],
    "bitsandbytes, nested, merged": (
        "Phi-3",
        checkpoints.bitsandbytes(64, nested=True),
        CASES["bitsandbytes"][2],
    ),
    "modelopt": CASES["modelopt"],
}
"""Formats that back ends keep as codes."""
FLOATS = ("fp8", "mxfp8", "bitsandbytes")
"""Beginnings of formats of which C++ kernels do not round activations."""


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_what_is_stored_stays_so_by_default(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Logits are transformers' where activations are not rounded, and near to them where they are."""
    model, encoder, config = BY_DEFAULT[name]
    architecture, changes = MODELS[model]
    all_experts = {"num_experts_per_tok": 4}  # else a rounded activation may route a token to another one
    random_model(architecture, changes | WIDE | all_experts).save_pretrained(tmp_path / "source")
    stored, meant = checkpoints.write(tmp_path / "source", tmp_path, encoder, config)
    caplog.set_level(logging.INFO, logger="gpu_worker")
    four_bits = name in KEPT
    back_ends: list[Kernels] = [KeptReference(), KeptKernels(with_team(build.supported()[0], 2))]
    for kernels in back_ends:
        caplog.clear()
        found, expected = (logits_of(directory, kernels) for directory in (stored, meant))
        keeps = name not in PLAIN
        assert ("100 % stay as they are" if keeps else " 0 % stay as they are") in caplog.text
        exact = four_bits if isinstance(kernels, KeptReference) else name.startswith("fp8")
        rounds = keeps and not exact
        assert (found - expected).norm() < (0.15 if rounds else 1e-5) * expected.norm()
        if rounds:
            assert not torch.equal(found, expected)


@pytest.mark.parametrize("name", AS_CODES)
def test_codes_stay_so_by_default(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, encoder, config = AS_CODES[name]
    architecture, changes = MODELS[model]
    random_model(architecture, changes | WIDE).save_pretrained(tmp_path / "source")
    write = checkpoints.write_stacked if model == "gpt-oss" else checkpoints.write
    stored, meant = write(tmp_path / "source", tmp_path, encoder, config)
    caplog.set_level(logging.INFO, logger="gpu_worker")
    back_ends: list[Kernels] = [KeptReference(), KeptKernels(with_team(build.supported()[0], 1))]
    for kernels in back_ends:
        caplog.clear()
        found, expected = (logits_of(directory, kernels) for directory in (stored, meant))
        assert "100 % stay as they are" in caplog.text
        rounds = isinstance(kernels, KeptKernels) and not name.startswith(FLOATS)
        assert (found - expected).norm() < (0.15 if rounds else 1e-5) * expected.norm()


def test_products_with_multipliers_are_dequantized(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of Falcon H1 only the MLP's up has none, but it is one product with its gate."""
    encoder, config = AS_CODES["fp8, squares"][1:]
    architecture, changes = MODELS["Falcon H1"]
    random_model(architecture, changes | WIDE).save_pretrained(tmp_path / "source")
    stored, meant = checkpoints.write(tmp_path / "source", tmp_path, encoder, config)
    caplog.set_level(logging.INFO, logger="gpu_worker")
    found, expected = (logits_of(directory, KeptReference()) for directory in (stored, meant))
    assert " 0 % stay as they are" in caplog.text
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_every_rank_keeps_whole_groups_of_experts(tmp_path: Path) -> None:
    """Equal parts would begin in the middle of one. Results are those of one rank that has plain weights."""
    encoder, config = AS_CODES["mxfp4, stacked"][1:]
    architecture, changes = MODELS["gpt-oss"]
    random_model(architecture, changes | WIDE | {"intermediate_size": 96}).save_pretrained(
        tmp_path / "source"
    )
    stored, meant = checkpoints.write_stacked(tmp_path / "source", tmp_path, encoder, config)
    sizes = set[tuple[int, ...]]()

    class Watched(KeptReference):
        def __init__(self) -> None:
            self.kept = {"fp4": ReferenceKernels()}

        def mixture(self, experts: Any, count: int, activation: Any = "silu") -> Any:
            every = list(experts)
            for each in every:
                assert all(scales_of(weight, "fp4") is not None for weight in (each.up, each.down))
                sizes.add(tuple(each.down.shape))
            return super().mixture(every, count, activation)

    ranks = Together(2, lambda ranks: make_runner(stored, Watched(), ranks=ranks))
    seen, _ = [watch_logits(runner) for runner in ranks.runners]
    driver = Driver(ranks)
    driver.step((driver.admit(0, PROMPT), len(PROMPT)))
    assert sizes == {(64, 32), (64, 64)}
    found = torch.stack([seen[0, position] for position in range(len(PROMPT))])
    torch.testing.assert_close(found, logits_of(meant, ReferenceKernels()), atol=1e-4, rtol=1e-4)


def logits_of(directory: Path, kernels: Kernels) -> torch.Tensor:
    """Logits of a prompt."""
    runner = make_runner(directory, kernels)
    seen, driver = watch_logits(runner), Driver(runner)
    driver.step((driver.admit(0, PROMPT), len(PROMPT)))
    return torch.stack([seen[0, position] for position in range(len(PROMPT))])


@pytest.mark.parametrize("name", ["awq, experts", "gptq, order, merged", "gptq, experts"])
def test_other_4_bits_are_quantized_again(written: Any, name: str) -> None:
    """Inputs of a group that do not lie beside each other, and small groups: near to what is meant."""
    stored, meant = written(name)
    kept, plain = Kept(), Meant()
    for directory, kernels in ((stored, kept), (meant, plain)):
        load_model(directory, torch.device("cpu"), kernels, torch.float32)
    for found, expected in zip(kept.weights, plain.weights, strict=True):
        assert (found - expected).norm() < 0.1 * expected.norm()
    assert not all(map(torch.equal, kept.weights, plain.weights))
