"""Models of transformers have Quire's products: of any format, quantized or not."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from gpu_worker.errors import ModelError
from gpu_worker.kernels.cpu import build
from gpu_worker.kernels.cpu.kernels import Int4Kernels, KeptKernels, QuantizedKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kept import KeptReference
from gpu_worker.kernels.reference.kernels import ReferenceKernels, ReferenceLinear
from gpu_worker.kernels.reference.quantized import QuantizedReference
from gpu_worker.models.checkpoint import Checkpoint
from gpu_worker.models.load import load_model
from gpu_worker.models.transformers_model import TransformersModel
from tests.support import checkpoints
from tests.support.checkpoints import Encoder
from tests.support.native import with_team
from tests.unit.gpu_worker.behaviour.test_checkpoint_formats import (
    BLOCKS,
    CASES,
    GPTQ,
    KEPT,
    WIDE,
    compressed,
    logits_of,
)
from tests.unit.gpu_worker.behaviour.test_families import PROMPT, check, random_model
from tests.unit.gpu_worker.conftest import makers
from tests.unit.gpu_worker.models.test_transformers_model import MIXTURES, MODELS

CPU = torch.device("cpu")
FAMILIES = MODELS | MIXTURES
GEMMA = "Gemma 4, keys of earlier layers"
FORMATS: dict[str, tuple[str, Encoder, dict[str, Any]]] = {
    "fp8, squares": ("ERNIE 4.5 MoE", checkpoints.fp8(10, 12, "weight_scale_inv"), BLOCKS),
    "fp8, outputs": (GEMMA, checkpoints.fp8(1), compressed("float-quantized", strategy="channel")),
    "gptq": ("Hunyuan MoE", checkpoints.gptq(), GPTQ),
    "awq": (GEMMA, checkpoints.awq(), {"quant_method": "awq", "bits": 4, "group_size": 8}),
    "nvfp4": ("Nemotron", *CASES["nvfp4"][1:]),
    "bitsandbytes": ("Gemma 4 MoE, keys as values", *CASES["bitsandbytes"][1:]),
    "bitsandbytes, 8 bits": ("Ministral, windows", *CASES["bitsandbytes, 8 bits"][1:]),
}
SEEDS = {"fp8, squares": 1, "bitsandbytes": 2}
"""Of models that repeat themselves less than those of seed 0."""


def written(tmp_path: Path, name: str, encoder: Encoder, config: dict[str, Any], **changes: Any) -> Any:
    """A family's directories: quantized, and with the weights that it means."""
    architecture, sizes = FAMILIES[name]
    random_model(architecture, sizes | changes).save_pretrained(tmp_path / "source")
    return checkpoints.write(tmp_path / "source", tmp_path, encoder, config)


def load(directory: Path, kernels: Kernels) -> Any:
    model = load_model(directory, CPU, kernels, torch.float32)
    assert isinstance(model, TransformersModel)
    return model


def linears(model: TransformersModel) -> dict[str, torch.nn.Linear]:
    return {name: one for name, one in model._inner.named_modules() if type(one) is torch.nn.Linear}


@pytest.mark.parametrize("name", FORMATS)
def test_logits_equal_transformers_with_the_weights_that_are_meant(tmp_path: Path, name: str) -> None:
    stored, meant = written(tmp_path, *FORMATS[name], seed=SEEDS.get(name, 0))
    theirs = AutoModelForCausalLM.from_pretrained(meant, attn_implementation="eager").eval()

    @torch.inference_mode()
    def logits(*tokens: int) -> torch.Tensor:
        found: torch.Tensor = theirs(torch.tensor([tokens])).logits[0]
        return found

    check(makers(ReferenceKernels()), SimpleNamespace(logits=logits, directory=stored), 0)


@pytest.mark.parametrize("family", ["ERNIE 4.5 MoE", "Nemotron"])
@pytest.mark.parametrize("form", ["gptq", "pack-quantized", "awq", "bitsandbytes, 8 bits"])
def test_what_is_stored_stays_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, family: str, form: str
) -> None:
    _, encoder, config = (CASES | KEPT)[form]
    stored, meant = written(tmp_path, family, encoder, config, **WIDE)
    caplog.set_level(logging.INFO, logger="gpu_worker")
    for kernels in (KeptReference(), KeptKernels(with_team(build.supported()[0], 2))):
        caplog.clear()
        found, expected = (logits_of(directory, kernels) for directory in (stored, meant))
        assert "100 % stay as they are" in caplog.text
        assert (found - expected).norm() < 0.15 * expected.norm()


@pytest.mark.parametrize(
    ("kernels", "most"),
    [
        (QuantizedReference(torch.int8), 0.2),
        (Int4Reference(), 0.7),
        (QuantizedKernels, 0.2),
        (Int4Kernels, 0.7),
    ],
)
@pytest.mark.parametrize("family", ["ERNIE 4.5 MoE", GEMMA, "Granite MoE", "Llama 4", "Aria"])
def test_weights_are_quantized_if_that_is_set(tmp_path: Path, family: str, kernels: Any, most: float) -> None:
    random_model(*FAMILIES[family]).save_pretrained(tmp_path)
    if isinstance(kernels, type):
        kernels = kernels(with_team(build.supported()[0], 2))
    found, expected = logits_of(tmp_path, kernels), logits_of(tmp_path, ReferenceKernels())
    assert 1e-4 < (found - expected).norm() / expected.norm() < most


@pytest.mark.parametrize(
    "family",
    ["ERNIE 4.5 MoE", GEMMA, "Gemma 4 MoE, keys as values", "Phi 3.5 MoE", "Granite MoE", "Llama 4", "Aria"],
)
def test_transformers_keeps_no_weights_of_products(tmp_path: Path, family: str) -> None:
    random_model(*FAMILIES[family]).save_pretrained(tmp_path)
    model = load(tmp_path, ReferenceKernels())
    inside = {name: each for name, each in model._inner.named_parameters() if each.dim() > 1}
    matrices = {name for name in inside if not name.startswith("embed_tokens")}
    assert {name for name in matrices if ".router." not in name and ".gate." not in name} == set()
    assert all(one.weight.numel() == 0 for name, one in linears(model).items() if ".router." not in name)


def test_quantized_experts_of_llama_4_are_tensors_of_their_own(tmp_path: Path) -> None:
    """Published ones are, although transformers stacks them as [experts, in, out]."""
    random_model(*FAMILIES["Llama 4"]).save_pretrained(tmp_path / "source")
    path = tmp_path / "source" / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        prefix, _, product = name.rpartition(".")
        for number, matrix in enumerate(tensors.pop(name).mT):
            both = zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True)
            for part, each in both if product == "gate_up_proj" else [(product, matrix)]:
                tensors[f"{prefix}.{number}.{part}.weight"] = each.contiguous()
    save_file(tensors, path)
    form = compressed("float-quantized", strategy="channel")
    stored, meant = checkpoints.write(tmp_path / "source", tmp_path, checkpoints.fp8(1), form)
    expected = logits_of(meant, ReferenceKernels())
    torch.testing.assert_close(logits_of(stored, ReferenceKernels()), expected, atol=1e-4, rtol=1e-4)
    theirs = random_model(*FAMILIES["Llama 4"])
    means = load_file(meant / "model.safetensors")
    for name, parameter in theirs.named_parameters():
        if ".experts." in name:
            prefix, _, product = name.rpartition(".")
            names = ["gate_proj", "up_proj"] if product == "gate_up_proj" else [product]
            singles = [torch.cat([means[f"{prefix}.{n}.{one}.weight"] for one in names]) for n in range(2)]
            parameter.data = torch.stack(singles).mT.contiguous()
        else:
            parameter.data = means[name]
    with torch.inference_mode():
        torch.testing.assert_close(expected, theirs(torch.tensor([PROMPT])).logits[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("encoder", "form"),
    [
        (checkpoints.fp8(1), compressed("float-quantized", strategy="channel")),
        (checkpoints.fp8(), {"quant_method": "fp8"}),
        (checkpoints.fp8(10, 12, "weight_scale_inv"), BLOCKS),
    ],
    ids=["outputs", "whole", "squares"],
)
def test_quantized_experts_lie_stacked_beside_their_scales(tmp_path: Path, encoder: Any, form: Any) -> None:
    """As in Llama 4 of one byte a weight."""
    random_model(*FAMILIES["Llama 4"]).save_pretrained(tmp_path / "source")
    stored, meant = checkpoints.write_stacked(tmp_path / "source", tmp_path, encoder, form)
    theirs = AutoModelForCausalLM.from_pretrained(meant, attn_implementation="eager").eval()
    load(stored, ReferenceKernels())
    with torch.inference_mode():
        expected = theirs(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_of(stored, ReferenceKernels()), expected, atol=1e-4, rtol=1e-4)


def test_stacked_experts_of_one_byte_without_scales_are_refused(tmp_path: Path) -> None:
    random_model(*FAMILIES["Llama 4"]).save_pretrained(tmp_path / "source")
    form = {"quant_method": "fp8"}
    stored, _ = checkpoints.write_stacked(tmp_path / "source", tmp_path, checkpoints.fp8(), form)
    tensors = load_file(stored / "model.safetensors")
    left = {name: each for name, each in tensors.items() if not name.endswith("_scale")}
    save_file(left, stored / "model.safetensors")
    with pytest.raises(ModelError, match=r"experts\.\w+_proj is of type float8_e4m3fn$"):
        load(stored, ReferenceKernels())


def test_transformers_reads_products_of_tried_layers_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So loading takes the memory of what is kept, and of these layers as they are dequantized."""
    _, encoder, config = FORMATS["gptq"]
    stored, _ = written(tmp_path, "Nemotron", encoder, config, num_hidden_layers=6)
    read, dense = list[str](), Checkpoint.dense
    monkeypatch.setattr(
        Checkpoint, "dense", lambda self, name, *of: read.append(name) or dense(self, name, *of)
    )
    load(stored, ReferenceKernels())
    products = {name for name in read if "_proj." in name}
    assert len(products) == 6
    assert all(name.startswith("model.layers.0.") for name in products)


def test_a_zero_bias_of_a_quantized_checkpoint_means_nothing(tmp_path: Path) -> None:
    _, encoder, config = FORMATS["gptq"]
    stored, _ = written(tmp_path, "Nemotron", encoder, config)
    tensors = load_file(stored / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.bias"
    save_file(tensors | {name: torch.zeros(48)}, stored / "model.safetensors")
    load(stored, ReferenceKernels())
    save_file(tensors | {name: torch.ones(48)}, stored / "model.safetensors")
    with pytest.raises(ModelError, match=f"does not account for tensor {name}"):
        load(stored, ReferenceKernels())


def test_a_quantized_weight_of_another_shape_is_refused(tmp_path: Path) -> None:
    _, encoder, config = FORMATS["gptq"]
    stored, _ = written(tmp_path, "Nemotron", encoder, config)
    values = json.loads((stored / "config.json").read_text())
    (stored / "config.json").write_text(json.dumps(values | {"intermediate_size": 56}))
    with pytest.raises(ModelError, match=r"has shape \[\d+, \d+\].*config.json means"):
        load(stored, ReferenceKernels())


def test_products_that_compute_something_else_are_noticed(tmp_path: Path) -> None:
    class Wrong(ReferenceKernels):
        def linear(self, weight: torch.Tensor, *of: Any, **named: Any) -> ReferenceLinear:
            return super().linear(weight.flip(0), *of, **named)

    random_model(*FAMILIES["Nemotron"]).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="with Quire's products it computes something else"):
        load(tmp_path, Wrong())
