"""Quantized copies: loaded again by a worker, near to the original, and whole or not there."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gpu_worker.kernels.reference.kept import KeptReference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.models.formats.format import IN_MLX_FORM
from gpu_worker.models.load import Beside, load_model
from gpu_worker.models.wrapped import tower_tensors
from ops.model_directory.files import MODELOPT
from ops.quantize import checkpoint
from ops.quantize.checkpoint import QuantizeError, quantize
from ops.quantize.weights import TARGETS
from tests.support.dense import dense, write
from tests.support.seeing import seeing
from tests.unit.gpu_worker.behaviour.test_checkpoint_formats import WIDE, logits_of
from tests.unit.gpu_worker.behaviour.test_families import MODELS, random_model


@pytest.fixture
def source(tmp_path: Path) -> Path:
    architecture, changes = MODELS["Qwen3 MoE"]
    random_model(architecture, changes | WIDE).save_pretrained(tmp_path / "source")
    (tmp_path / "source" / "chat_template.jinja").write_text("{{ messages }}")
    return tmp_path / "source"


@pytest.mark.parametrize(("kind", "most"), [("int4", 0.4), ("int8", 0.03), ("fp8", 0.15)])
def test_a_worker_loads_the_copy(source: Path, tmp_path: Path, kind: str, most: float) -> None:
    said: list[str] = []
    report = quantize(source, tmp_path / "copy", kind, said.append)
    expected = logits_of(source, ReferenceKernels())
    found = logits_of(tmp_path / "copy", ReferenceKernels())
    assert 0 < (found - expected).norm() < most * expected.norm()
    kept = logits_of(tmp_path / "copy", KeptReference())
    assert (kept - found).norm() < (1e-4 if kind == "int4" else 0.3) * found.norm()
    assert report.bytes_after < 0.6 * report.bytes_before
    assert report.quantized > 5 * report.plain
    assert said[-1].startswith("100 % of ")
    assert (tmp_path / "copy" / "chat_template.jinja").read_text() == "{{ messages }}"
    ignored = json.loads((tmp_path / "copy" / "config.json").read_text())["quantization_config"]["ignore"]
    assert "lm_head" in ignored
    assert "model.layers.0.mlp.gate" in ignored
    assert not [name for name in ignored if "experts" in name or "proj" in name]


def test_several_files_and_their_index(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize(source, tmp_path / "one", "int8", str)
    monkeypatch.setattr(checkpoint, "SHARD", 100_000)
    quantize(source, tmp_path / "several", "int8", str)
    files = sorted(path.name for path in (tmp_path / "several").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_text())["weight_map"]
    with safe_open(tmp_path / "one" / "model.safetensors", framework="pt") as whole:
        assert set(index) == set(whole.keys())
    one, several = (logits_of(tmp_path / name, ReferenceKernels()) for name in ("one", "several"))
    assert torch.equal(one, several)


def test_weights_that_have_no_whole_groups_stay(tmp_path: Path) -> None:
    random_model(*MODELS["Llama"]).save_pretrained(tmp_path / "source")  # 48 inputs of down_proj
    quantize(tmp_path / "source", tmp_path / "copy", "int4", str)
    with safe_open(tmp_path / "copy" / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    config = json.loads((tmp_path / "copy" / "config.json").read_text())["quantization_config"]
    assert "lm_head" in config["ignore"]  # though it is the embedding, and no tensor
    assert "model.layers.0.mlp.down_proj.weight" in names
    assert "model.layers.0.mlp.up_proj.weight_packed" in names
    assert logits_of(tmp_path / "copy", ReferenceKernels()).isfinite().all()


def test_the_weights_of_an_indexers_heads_stay(tmp_path: Path) -> None:
    """As routers do: they select, and their products are float32."""
    architecture, changes = MODELS["DeepSeek V3.2"]
    random_model(architecture, changes | WIDE).save_pretrained(tmp_path / "source")
    quantize(tmp_path / "source", tmp_path / "copy", "int8", str)
    with safe_open(tmp_path / "copy" / "model.safetensors", framework="pt") as file:
        kinds = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    indexer = "model.layers.1.self_attn.indexer"
    assert kinds[f"{indexer}.weights_proj.weight"] == torch.float32
    assert kinds[f"{indexer}.wk.weight"] == kinds[f"{indexer}.wq_b.weight"] == torch.int8
    config = json.loads((tmp_path / "copy" / "config.json").read_text())["quantization_config"]
    assert f"{indexer}.weights_proj" in config["ignore"]
    assert logits_of(tmp_path / "copy", ReferenceKernels()).isfinite().all()


@pytest.mark.parametrize(
    ("name", "plain", "quantized"),
    [
        ("Kimi Linear", ["layers.1.block_sparse_moe.gate"], "layers.0.block_sparse_moe.up_proj"),
        ("Ling 3", ["word_embeddings", "layers.1.mlp.gate"], "layers.0.mlp.up_proj"),
    ],
)
def test_routers_and_embeddings_stay_whatever_they_are_called(
    tmp_path: Path, name: str, plain: list[str], quantized: str
) -> None:
    architecture, changes = MODELS[name]
    random_model(architecture, changes | {"hidden_size": 128}).save_pretrained(tmp_path / "source")
    quantize(tmp_path / "source", tmp_path / "copy", "int8", str)
    with safe_open(tmp_path / "copy" / "model.safetensors", framework="pt") as file:
        kinds = {each: file.get_tensor(f"model.{each}.weight").dtype for each in (*plain, quantized)}
    assert kinds == {**dict.fromkeys(plain, torch.float32), quantized: torch.int8}
    assert logits_of(tmp_path / "copy", ReferenceKernels()).isfinite().all()


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_what_a_model_sees_with_stays(tmp_path: Path, kind: str) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    seeing("Qwen3VL", source)
    quantize(source, copy, kind, str)
    with (
        safe_open(source / "model.safetensors", framework="pt") as before,
        safe_open(copy / "model.safetensors", framework="pt") as after,
    ):
        towers = tower_tensors(before.keys())
        assert towers
        assert all(before.get_tensor(name).equal(after.get_tensor(name)) for name in towers)
        assert not set(after.keys()) <= set(before.keys())
    ignored = json.loads((copy / "config.json").read_text())["quantization_config"]["ignore"]
    assert "model.visual.blocks.0.mlp.linear_fc1" in ignored
    loaded = load_model(copy, torch.device("cpu"), ReferenceKernels(), beside=Beside(image_tokens=64))
    assert loaded.tower is not None


def test_a_classification_head_stays(tmp_path: Path) -> None:
    changes = {"num_labels": 4, "hidden_size": 64}
    random_model("LlamaForSequenceClassification", changes).save_pretrained(tmp_path / "source")
    quantize(tmp_path / "source", tmp_path / "copy", "int8", str)
    with safe_open(tmp_path / "copy" / "model.safetensors", framework="pt") as file:
        kinds = [file.get_tensor(f"{name}.weight").dtype for name in ("score", "model.layers.0.mlp.up_proj")]
    assert kinds == [torch.float32, torch.int8]
    config = json.loads((tmp_path / "copy" / "config.json").read_text())["quantization_config"]
    assert "score" in config["ignore"]


def test_modules_of_sentence_transformers_come_along(tmp_path: Path) -> None:
    """The pooling, and the layers after it, whose weights stay as they are."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    random_model("LlamaForCausalLM", {"hidden_size": 64}).save_pretrained(source)
    write(source, [dense(64, 16)])
    quantize(source, copy, "int8", str)
    for path in ("modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"):
        assert (copy / path).read_bytes() == (source / path).read_bytes()


def test_what_model_optimizer_has_quantized_is_refused(source: Path, tmp_path: Path) -> None:
    (source / MODELOPT).write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    with pytest.raises(QuantizeError, match="is quantized already"):
        quantize(source, tmp_path / "copy", "int8", str)


def test_what_is_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantize(source, tmp_path / "copy", "fp8", str)
    with pytest.raises(QuantizeError, match="copy exists already"):
        quantize(source, tmp_path / "copy", "int8", str)
    with pytest.raises(QuantizeError, match="is quantized already"):
        quantize(tmp_path / "copy", tmp_path / "other", "int8", str)
    random_model(*MODELS["GPT-2"]).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(QuantizeError, match=r"weights of GPT2LMHeadModel are \[in, out\]"):
        quantize(tmp_path / "gpt2", tmp_path / "other", "int8", str)


def test_a_recurrent_model_of_mlx_is_refused(tmp_path: Path) -> None:
    """A copy would not say any more who has written its norms."""
    source = tmp_path / "source"
    random_model(*MODELS["Qwen3 Next"]).save_pretrained(source)
    save_file(load_file(source / "model.safetensors"), source / "model.safetensors", {"format": "mlx"})
    with pytest.raises(QuantizeError, match=f"{source}: {IN_MLX_FORM}"):
        quantize(source, tmp_path / "copy", "int8", str)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_copy_that_fails_is_not_there(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        quantize(source, tmp_path / "copy", "int8", str)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_all_types_are_offered() -> None:
    from ops.cli.quantize import KINDS

    assert set(KINDS) == set(TARGETS)
