"""What computes is what suits, or is refused in one line."""

import json
import weakref

import pytest
import torch
from safetensors.torch import save_file

from gpu_worker.errors import KernelError, NoDeviceError
from gpu_worker.kernels.cpu import library
from gpu_worker.kernels.cpu.kernels import (
    CpuKernels,
    Int4Kernels,
    KeptKernels,
    KeptOneDnnKernels,
    OneDnnKernels,
    QuantizedKernels,
)
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kept import KeptReference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.quantized import QuantizedReference
from gpu_worker.kernels.triton import gpu
from gpu_worker.kernels.triton.kernels import Int4Triton, KeptTriton, QuantizedTriton, TritonKernels
from gpu_worker.models.weights import Weights
from gpu_worker.startup import backend
from gpu_worker.startup.load import load
from tests.support.native import NO_ONEDNN_BFLOAT16


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(settings) -> None:
    with pytest.raises(NoDeviceError, match="no GPU"):
        load(settings(device="cuda"))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"kernels": "torch"}, ReferenceKernels),
        ({"dtype": "float16"}, ReferenceKernels),
        ({"kernels": "portable"}, CpuKernels),
        ({"kernels": "triton"}, TritonKernels),
        ({}, CpuKernels),
        ({"dtype": "bfloat16"}, CpuKernels),
        ({"dtype": "bfloat16", "kernels": "onednn"}, OneDnnKernels),
        ({"dtype": "bfloat16", "kernels": "portable"}, CpuKernels),
        ({"kernels": "onednn"}, OneDnnKernels),
        ({"quantization": "int8"}, QuantizedKernels),
        ({"quantization": "int8", "dtype": "bfloat16"}, QuantizedKernels),
        ({"quantization": "int8", "kernels": "portable"}, QuantizedKernels),
        ({"quantization": "int8", "dtype": "float16"}, QuantizedReference),
        ({"quantization": "fp8", "kernels": "torch"}, QuantizedReference),
        ({"quantization": "int4"}, Int4Kernels),
        ({"quantization": "int4", "dtype": "bfloat16", "kernels": "portable"}, Int4Kernels),
        ({"quantization": "int4", "kernels": "torch"}, Int4Reference),
        ({"quantization": "int4", "kernels": "triton"}, Int4Triton),
        ({"quantization": "fp8", "kernels": "triton"}, QuantizedTriton),
        ({"quantization": "int8", "kernels": "triton", "dtype": "bfloat16"}, QuantizedTriton),
    ],
)
def test_the_back_end_is_the_one_that_suits(settings, changes, kind) -> None:
    if kind is OneDnnKernels and changes.get("dtype") == "bfloat16" and NO_ONEDNN_BFLOAT16:
        pytest.skip(NO_ONEDNN_BFLOAT16)
    found = []
    load(settings(**changes), lambda kernels: found.append(kernels) or kernels)
    assert type(found[0]) is kind


@pytest.mark.parametrize(
    ("config", "changes", "dtype"),
    [
        ({"dtype": "bfloat16"}, {}, "bfloat16"),
        ({"torch_dtype": "bfloat16"}, {"quantization": "int8"}, "bfloat16"),
        ({"dtype": "bfloat16"}, {"kernels": "portable"}, "bfloat16"),
        ({"dtype": "bfloat16"}, {"dtype": "float16"}, "float16"),
        ({"dtype": "bfloat16"}, {"kernels": "torch"}, "float32"),
        ({"dtype": "bfloat16"}, {"kernels": "onednn"}, "float32"),
        ({"dtype": "float16"}, {}, "float32"),
        ({}, {}, "float32"),
        ({"dtype": "bfloat16", "architectures": ["PersimmonForCausalLM"]}, {}, "bfloat16"),
        ({"dtype": "bfloat16", "architectures": ["BertModel"], "model_type": "bert"}, {}, "float32"),
        ({"dtype": "bfloat16", "architectures": []}, {}, "float32"),
    ],
)
def test_a_cpu_computes_in_the_models_own_type_if_its_rows_are_exact(
    settings, tmp_path, monkeypatch, config, changes, dtype
) -> None:
    own = json.loads((settings().model / "config.json").read_text())
    own.pop("dtype", None)
    (tmp_path / "config.json").write_text(json.dumps(own | config))
    asked = settings(model=tmp_path, **changes)
    monkeypatch.setattr(library, "load", None)  # each rank starts threads of its own, later
    monkeypatch.setattr(backend, "has_onednn_bfloat16", lambda: True)
    assert backend.with_dtype(asked, torch.device("cpu")).dtype == dtype
    assert backend.with_dtype(asked, torch.device("cuda")).dtype == changes.get("dtype", "auto")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_cpu_computes_in_the_type_of_the_weights_where_config_json_names_none(
    settings, tmp_path, monkeypatch, dtype
) -> None:
    own = json.loads((settings().model / "config.json").read_text())
    del own["dtype"]
    (tmp_path / "config.json").write_text(json.dumps(own))
    weights = {"lm_head.weight": torch.zeros(2, 2, dtype=getattr(torch, dtype))}
    save_file(weights, tmp_path / "model.safetensors")
    monkeypatch.setattr(library, "load", None)
    assert backend.with_dtype(settings(model=tmp_path), torch.device("cpu")).dtype == dtype


def test_transformers_computes_bfloat16_where_pytorch_is_fast_at_it(settings, tmp_path, monkeypatch) -> None:
    own = {"architectures": ["PersimmonForCausalLM"], "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(own))
    for fast, dtype in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr(backend, "has_onednn_bfloat16", lambda fast=fast: fast)
        assert backend.with_dtype(settings(model=tmp_path), torch.device("cpu")).dtype == dtype


def test_a_cpu_without_kernels_computes_in_float32(settings, tmp_path, monkeypatch) -> None:
    own = json.loads((settings().model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(own | {"dtype": "bfloat16"}))

    def opened(instruction_set: str) -> None:
        raise KernelError("no compiler")

    monkeypatch.setattr(library, "opened", opened)
    assert backend.with_dtype(settings(model=tmp_path), torch.device("cpu")).dtype == "float32"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, KeptKernels),
        ({"dtype": "bfloat16"}, KeptKernels),
        ({"kernels": "onednn"}, KeptOneDnnKernels),
        ({"kernels": "torch"}, KeptReference),
        ({"kernels": "triton"}, KeptTriton),
        ({"quantization": "none"}, CpuKernels),
        ({"quantization": "none", "kernels": "torch"}, ReferenceKernels),
        ({"quantization": "none", "kernels": "triton"}, TritonKernels),
        ({"quantization": "int4"}, Int4Kernels),
    ],
)
def test_quantized_weights_stay_so_unless_the_settings_say_otherwise(
    settings, tmp_path, changes, kind
) -> None:
    config = json.loads((settings().model / "config.json").read_text())
    form = {"quant_method": "gptq", "bits": 4, "group_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": form}))
    chosen = settings(model=tmp_path, **changes)
    assert type(backend.kernels_of(chosen, torch.device("cpu"))) is kind
    assert backend.keeps_weights(chosen) == ("quantization" not in changes)
    assert not backend.keeps_weights(settings(model=tmp_path / "other"))


@pytest.mark.parametrize(
    "changes",
    [
        {"quantization": "int8", "kernels": "onednn"},
        {"quantization": "int4", "kernels": "onednn"},
        {"quantization": "fp8"},
    ],
)
def test_weights_are_refused_where_nobody_multiplies_them(settings, changes) -> None:
    with pytest.raises(KernelError, match=f"QUIRE_QUANTIZATION={changes['quantization']}"):
        load(settings(**changes))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (QuantizedKernels, {"quantization": "int8"}),
        (Int4Kernels, {"quantization": "int4"}),
        (QuantizedReference, {"quantization": "int8", "kernels": "torch"}),
        (Int4Reference, {"quantization": "int4", "kernels": "torch"}),
    ],
)
def test_weights_are_quantized_one_after_the_other(settings, saved, monkeypatch, tied, kind, changes) -> None:
    """None is held any longer when the next is read."""
    given: list[weakref.ref[torch.Tensor]] = []

    def merge(weights, *which):
        assert not any(weight() is not None for weight in given)
        return read(weights, *which)

    def keep_an_eye(made):
        def make(kernels, weight, *more, **named):
            if not given or given[-1]() is not weight:  # a gated product may ask for a plain one
                given.append(weakref.ref(weight))
            return made(kernels, weight, *more, **named)

        return make

    directory = saved(tie_word_embeddings=tied).directory
    read = Weights._merge
    monkeypatch.setattr(Weights, "_merge", merge)
    monkeypatch.setattr(kind, "linear", keep_an_eye(kind.linear))
    monkeypatch.setattr(kind, "gated", keep_an_eye(kind.gated))
    load(settings(model=directory, **changes))
    assert len(given) == 2 * 4 + 1


def test_on_a_gpu_before_ampere_pytorch_computes(settings, monkeypatch, caplog) -> None:
    monkeypatch.setattr(gpu, "capability", lambda device: (7, 5))
    assert type(backend._triton(settings(), torch.device("cuda"))) is ReferenceKernels
    assert "need a GPU of compute capability 8.0" in caplog.text


def test_on_a_gpu_of_amd_pytorch_computes(settings, monkeypatch, caplog) -> None:
    """PyTorch calls it `cuda`, with a capability that would be that of another GPU of NVIDIA."""
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 4))
    assert type(backend._triton(settings(), torch.device("cuda"))) is ReferenceKernels
    assert "AMD's: PyTorch computes instead" in caplog.text


def test_where_triton_cannot_compile_pytorch_computes(settings, monkeypatch, caplog) -> None:
    def cannot(kernels, device):
        raise KernelError("Triton cannot compile here: no gcc")

    monkeypatch.setattr(TritonKernels, "__init__", cannot)
    assert type(backend._triton(settings(), torch.device("cuda"))) is ReferenceKernels
    assert "no gcc: PyTorch computes instead" in caplog.text
    with pytest.raises(KernelError, match="QUIRE_KERNELS=triton: Triton cannot compile"):
        load(settings(kernels="triton"))
    for numbers in ("int4", "fp8"):
        with pytest.raises(KernelError, match=f"QUIRE_QUANTIZATION={numbers}: Triton cannot compile"):
            backend._triton(settings(quantization=numbers), torch.device("cuda"))


def test_without_a_compiler_pytorch_computes(settings, monkeypatch, caplog, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    library.load.cache_clear()
    found = []
    load(settings(), lambda kernels: found.append(kernels) or kernels)
    assert type(found[0]) is ReferenceKernels
    assert "no C++ compiler" in caplog.text
    assert found[0].reason.startswith("no C++ compiler")
    with pytest.raises(KernelError, match="no C\\+\\+ compiler"):
        load(settings(kernels="portable"))
    load(settings(quantization="int8"), lambda kernels: found.append(kernels) or kernels)
    assert type(found[1]) is QuantizedReference
