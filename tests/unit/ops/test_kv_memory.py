"""What a token takes, held against the figures of well-known models; weights against real files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.kv import FORMATS
from gpu_worker.memory.cache import bytes_per_block
from gpu_worker.models.config import read_config as model_config
from gpu_worker.models.load import load_model
from ops.cli.main import main
from ops.kv_memory import ModelFilesError, kv_shape, loaded_bytes, plan, read_config, weights_bytes
from ops.model_directory.files import MODELOPT
from tests.support import checkpoints
from tests.unit.gpu_worker.behaviour.test_families import ALIKE, random_model
from tests.unit.gpu_worker.behaviour.test_families import MODELS as FAMILIES
from tests.unit.gpu_worker.conftest import llama
from tests.unit.gpu_worker.models.test_transformers_model import MIXTURES, MODELS

_LLAMA_2_7B = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
_LLAMA_3_8B = {**_LLAMA_2_7B, "num_key_value_heads": 8}
_DEEPSEEK_V2 = {"num_hidden_layers": 60, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
_MODEL = Path("ops/tiny_model/model")


@pytest.mark.parametrize(
    ("config", "kind", "size"),
    [
        (_LLAMA_2_7B, "MHA", 512 * 1024),
        (_LLAMA_3_8B, "GQA", 128 * 1024),
        ({**_LLAMA_2_7B, "num_key_value_heads": 1}, "MQA", 16 * 1024),
        (_DEEPSEEK_V2, "MLA", 60 * 576 * 2),
    ],
)
def test_a_token_of_a_known_model(config: dict[str, int], kind: str, size: int) -> None:
    shape = kv_shape(config)
    assert (shape.kind, shape.token_bytes("float16")) == (kind, size)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({"architectures": ["GPT2LMHeadModel"], "n_layer": 12, "n_head": 12, "n_embd": 768}, 36 * 1024),
        (
            {
                "architectures": ["Gemma2ForCausalLM"],
                "num_hidden_layers": 26,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "hidden_size": 2304,
            },
            26 * 2 * 4 * 256 * 2,
        ),
    ],
)
def test_a_family_that_calls_or_means_it_otherwise(tmp_path: Path, config: dict[str, Any], size: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert kv_shape(read_config(tmp_path)).token_bytes("float16") == size


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_a_block_takes_what_the_worker_says(dtype: str) -> None:
    kv = FORMATS[dtype](torch.float32) if dtype in FORMATS else FORMATS["auto"](getattr(torch, dtype))
    block = bytes_per_block(model_config(_MODEL), 16, kv)
    assert kv_shape(read_config(_MODEL)).token_bytes(dtype) * 16 == block


def test_index_keys_count(tmp_path: Path) -> None:
    """Those of DeepSeek V3.2, and of GLM 5, of whose layers some have an indexer."""
    shared = {"kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64}
    deepseek = shared | {"architectures": ["DeepseekV32ForCausalLM"], "num_hidden_layers": 61}
    glm = shared | {"architectures": ["GlmMoeDsaForCausalLM"], "num_hidden_layers": 6, "index_topk_freq": 3}
    for config, size in ((deepseek, 61 * (576 + 128)), (glm, 6 * 576 + 3 * 128)):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert kv_shape(read_config(tmp_path)).token_bytes("bfloat16") == 2 * size
    (tmp_path / "config.json").write_text(json.dumps(glm | {"index_head_dim": 32}))
    with pytest.raises(ModelFilesError, match="index_head_dim: 32 is less"):
        kv_shape(read_config(tmp_path))


@pytest.mark.parametrize(
    "model", [MODELS["Gemma 4, keys of earlier layers"], MIXTURES["Gemma 4 MoE, keys as values"]]
)
def test_layers_of_different_sizes_take_what_the_worker_says(tmp_path: Path, model: Any) -> None:
    """By the keys of published checkpoints, and by those that transformers writes."""
    random_model(*model).save_pretrained(tmp_path)
    config = load_model(tmp_path, torch.device("cpu"), ReferenceKernels()).config
    written = read_config(tmp_path)
    published = {key: value for key, value in written.items() if key != "per_layer_config"} | model[1]
    expected = bytes_per_block(config, 1, FORMATS["int8"](torch.float32))
    for keys in (written, published):
        shape = kv_shape(keys)
        assert (shape.layers, shape.token_bytes("int8")) == (config.num_layers, expected)
    with pytest.raises(ModelFilesError, match="layer_types must be a list of"):
        kv_shape(published | {"layer_types": None})


@pytest.mark.parametrize(
    "name", ["Qwen3.5", "LFM2 MoE", "OLMo Hybrid", "Kimi Linear", "Ling 3", "Nemotron 3", "Mamba-2"]
)
def test_states_take_what_the_worker_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    random_model(*(FAMILIES | ALIKE)[name]).save_pretrained(tmp_path)
    config = load_model(tmp_path, torch.device("cpu"), ReferenceKernels()).config
    shape, kv = kv_shape(read_config(tmp_path)), FORMATS["int8"](torch.float32)
    assert plan(shape, 0, 1 << 30, 32, "int8", 64).block_bytes == bytes_per_block(config, 32, kv)
    assert main(["plan-memory", "--model", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    recurrent = config.recurrence.layers
    assert f"a block, of {len(recurrent)} recurrent layers" in said
    assert ("attention   none" in said) == (len(recurrent) == config.num_layers)
    assert f"of {shape.usual_block_size('bfloat16')} tokens" in said


def test_encoders_have_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "hidden_size": 32}')
    with pytest.raises(ModelFilesError, match="an encoder keeps no keys and values"):
        read_config(tmp_path)


def test_memory_divides_into_weights_and_whole_blocks() -> None:
    fits = plan(kv_shape(_LLAMA_3_8B), 16 * 2**30, 24 * 2**30, 16, "bfloat16", 2049)
    assert (fits.block_bytes, fits.blocks) == (2 * 2**20, 4096)
    assert fits.requests == 4096 // 129  # the last token takes a block of its own


def test_weights_are_the_file_without_its_header() -> None:
    file = _MODEL / "model.safetensors"
    header = int.from_bytes(file.read_bytes()[:8], "little")
    assert weights_bytes(_MODEL) == file.stat().st_size - 8 - header


@pytest.mark.parametrize("name", ["model.safetensors", "layers-0.safetensors"])
def test_weights_count_once(tmp_path: Path, name: str) -> None:
    """Repositories of Mistral have all of them in another file, too."""
    (tmp_path / name).symlink_to((_MODEL / "model.safetensors").resolve())
    (tmp_path / "consolidated.safetensors").symlink_to((_MODEL / "model.safetensors").resolve())
    if name != "model.safetensors":
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert weights_bytes(tmp_path) == weights_bytes(_MODEL)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """Else a copy that is not whole would seem to fit."""
    (tmp_path / "a.safetensors").symlink_to((_MODEL / "model.safetensors").resolve())
    named = {"one": "a.safetensors", "two": "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    with pytest.raises(ModelFilesError, match=r"b\.safetensors is no safetensors file: .*No such file"):
        weights_bytes(tmp_path)


@pytest.mark.parametrize(
    ("encoder", "config", "bits"),
    [
        (checkpoints.fp8(1), {"quant_method": "fp8"}, 8),
        (checkpoints.fp8(), {"quant_algo": "FP8"}, 8),
        (checkpoints.gptq(), {"quant_method": "gptq", "bits": 4, "group_size": 8}, 4),
        (checkpoints.gptq(), {"quant_method": "another"}, 0),
    ],
)
def test_quantized_weights_count_as_bfloat16(
    tmp_path: Path, encoder: Any, config: dict[str, Any], bits: int, capsys: pytest.CaptureFixture[str]
) -> None:
    llama().save_pretrained(tmp_path / "source")
    stored, meant = checkpoints.write(tmp_path / "source", tmp_path, encoder, config)
    if "quant_algo" in config:  # as older versions of Model Optimizer have it
        (stored / "config.json").write_text((meant / "config.json").read_text())
        (stored / MODELOPT).write_text(json.dumps({"quantization": config}))
    quantized = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48)  # of two layers; all else is float32
    assert loaded_bytes(meant) == weights_bytes(meant)
    if bits:
        assert loaded_bytes(stored) == weights_bytes(meant) - 2 * quantized
        assert weights_bytes(stored) > weights_bytes(meant) - (4 - bits / 8) * quantized  # scales, too
    else:
        assert loaded_bytes(stored) == weights_bytes(stored)
    assert main(["plan-memory", "--model", str(stored)]) == 0
    assert ("with quantized ones in bfloat16" in capsys.readouterr().out) == bool(bits)


def test_no_room_fits_nothing() -> None:
    assert plan(kv_shape(_LLAMA_3_8B), 100, 50, 16, "int8", 1).requests == 0


@pytest.mark.parametrize("broken", [{}, {**_LLAMA_2_7B, "num_hidden_layers": "32"}])
def test_a_missing_or_odd_size_is_named(broken: dict[str, int]) -> None:
    with pytest.raises(ModelFilesError, match="num_hidden_layers"):
        kv_shape(broken)


def test_the_command_answers_or_fails_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["plan-memory", "--model", str(_MODEL)]) == 0
    assert "4 KiB a token" in capsys.readouterr().out  # 8 layers, 2 x 2 heads x 64, 2 bytes
    (tmp_path / "config.json").write_text("no")
    assert main(["plan-memory", "--model", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--memory", "24GB"], "in 22.35 GiB"),
        (["--memory", "24gib"], "in 24 GiB"),
        (["--memory", "0.5 GiB"], "in 512 MiB"),
        ([], "in 8 GiB"),
    ],
)
def test_the_shipped_model_and_usual_units(
    capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    assert main(["plan-memory", *given]) == 0
    output = capsys.readouterr().out
    assert said in output
    assert "4 KiB a token" in output


@pytest.mark.parametrize(("size", "said"), [("24", "24: which unit?"), ("much", "much: no size")])
def test_a_size_without_a_unit_is_refused(capsys: pytest.CaptureFixture[str], size: str, said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["plan-memory", "--memory", size])
    assert ended.value.code == 2
    assert f"{said} (such as 24GiB or 24GB)" in capsys.readouterr().err


def test_weights_that_do_not_fit_are_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan-memory", "--memory", "1MB"]) == 1
    output = capsys.readouterr()
    assert "requests    0 of" in output.out
    assert "the weights alone need" in output.err
