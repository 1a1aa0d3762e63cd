"""Names and numbers of the tensors of GGUF files."""

from pathlib import Path

import pytest
import torch

from gpu_worker.errors import ModelError
from gpu_worker.models.gguf_tensors import GgufTensors
from tests.support.gguf import random_blocks, write_gguf

NUMBERS = torch.randn(2, 32)
BLOCKS = random_blocks("Q4_0", 3, 64)


def plain(dtype: torch.dtype) -> tuple[int, tuple[int, ...], bytes]:
    number = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}[dtype]
    return number, (2, 32), NUMBERS.to(dtype).view(torch.uint8).numpy().tobytes()


def test_names_and_numbers(tmp_path: Path) -> None:
    tensors = {
        "token_embd.weight": plain(torch.bfloat16),
        "output.weight": plain(torch.float16),
        "blk.10.attn_q.weight": (2, (3, 64), BLOCKS.numpy().tobytes()),
        "blk.1.ffn_norm.weight": plain(torch.float32),
        "blk.1.other.weight": plain(torch.float32),
        "rope_freqs.weight": plain(torch.float32),
    }
    found = GgufTensors(write_gguf(tmp_path / "a.gguf", {"general.architecture": "qwen2"}, tensors))
    expected = {
        "model.embed_tokens.weight": NUMBERS.bfloat16(),
        "lm_head.weight": NUMBERS.half(),
        "model.layers.10.self_attn.q_proj.weight.Q4_0": BLOCKS,
        "model.layers.1.post_attention_layernorm.weight": NUMBERS,
        "model.layers.1.other.weight": NUMBERS,
    }
    assert set(found.names) == set(expected)
    for name, tensor in expected.items():
        assert torch.equal(found.get_tensor(name), tensor)
    assert found.get_slice("model.layers.10.self_attn.q_proj.weight.Q4_0").get_shape() == (3, 64)


def test_norms_of_gemma_are_one_less(tmp_path: Path) -> None:
    tensors = {"blk.0.ffn_norm.weight": plain(torch.float32), "output.weight": plain(torch.float32)}
    found = GgufTensors(write_gguf(tmp_path / "a.gguf", {"general.architecture": "gemma3"}, tensors))
    assert torch.equal(found.get_tensor("model.layers.0.pre_feedforward_layernorm.weight"), NUMBERS - 1)
    assert torch.equal(found.get_tensor("lm_head.weight"), NUMBERS)


def test_experts_are_taken_apart(tmp_path: Path) -> None:
    every = random_blocks("Q4_0", 6, 64)
    tensors = {"blk.0.ffn_up_exps.weight": (2, (2, 3, 64), every.numpy().tobytes())}
    found = GgufTensors(write_gguf(tmp_path / "a.gguf", {"general.architecture": "gpt-oss"}, tensors))
    assert found.names == [f"model.layers.0.mlp.experts.{number}.up_proj.weight.Q4_0" for number in (0, 1)]
    assert torch.equal(found.get_tensor(found.names[1]), every[3:])


def test_parts_of_latent_attention_fit_each_other(tmp_path: Path) -> None:
    values = {"general.architecture": "deepseek2"}
    for row, fits in ((4, True), (3, False)):
        key, value = torch.randn(2, 4, 5), torch.randn(2, 3, row)
        tensors = {
            f"blk.0.attn_{name}_b.weight": (0, tuple(part.shape), part.numpy().tobytes())
            for name, part in (("v", value), ("k", key))
        }
        file = write_gguf(tmp_path / "a.gguf", values, tensors)
        if not fits:
            with pytest.raises(ModelError, match=r"a\.gguf: the parts of model.*kv_b_proj.* do not fit"):
                GgufTensors(file)
            continue
        found = GgufTensors(file)
        (name,) = found.names
        assert found.get_slice(name).get_shape() == (2 * 8, 4)
        heads = found.get_tensor(name).view(2, 8, 4)
        assert torch.equal(heads, torch.cat((key.transpose(1, 2), value), 1))


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"PK" * 20)
    with pytest.raises(ModelError, match=r"a\.gguf: not a GGUF file"):
        GgufTensors(tmp_path / "a.gguf")
