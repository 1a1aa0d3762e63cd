"""Single experts of stacked tensors: names, shapes and contents."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from gpu_worker.models.stacked import single_experts

BASE = "model.layers.0.mlp.experts"


def test_an_expert_has_its_part_of_each_stacked_tensor(tmp_path: Path) -> None:
    stacked = {
        f"{BASE}.down_proj": torch.randn(2, 5, 3),
        f"{BASE}.down_proj_bias": torch.randn(2, 3),
        f"{BASE}.gate_up_proj_blocks": torch.randint(0, 256, (2, 6, 4, 16), dtype=torch.uint8),
        f"{BASE}.gate_up_proj_scales": torch.randint(0, 256, (2, 6, 4), dtype=torch.uint8),
        "model.norm.weight": torch.ones(3),
    }
    save_file(stacked, tmp_path / "model.safetensors")
    down, bias, blocks, scales, norm = stacked.values()
    expected = {"model.norm.weight": norm}
    for number in range(2):
        expected |= {
            f"{BASE}.{number}.down_proj.weight": down[number].T,
            f"{BASE}.{number}.down_proj.bias": bias[number],
            f"{BASE}.{number}.gate_up_proj.weight_packed": blocks[number].reshape(6, 64),
            f"{BASE}.{number}.gate_up_proj.weight_scale": scales[number],
        }
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        found = single_experts({name: (file, name) for name in stacked}, plain=True)
        assert found.keys() == expected.keys()
        for name, (source, own) in found.items():
            assert list(source.get_slice(own).get_shape()) == list(expected[name].shape)
            assert torch.equal(source.get_tensor(own), expected[name])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("size", "inner"), [(4, 2), (4, 4), (2, 4), (8, 4)])
def test_both_orders_of_matrices_are_told_apart(tmp_path: Path, turned: bool, size: int, inner: int) -> None:
    """Whatever their sizes: also if one of them is square."""
    up, down = torch.randn(3, 2 * inner, size), torch.randn(3, size, inner)
    both = {f"{BASE}.gate_up_proj": up, f"{BASE}.down_proj": down}
    save_file(
        {name: (each.mT if turned else each).contiguous() for name, each in both.items()},
        tmp_path / "model.safetensors",
    )
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        found = single_experts({name: (file, name) for name in both}, plain=True)
        for name, each in both.items():
            product = name.rpartition(".")[2]
            source, own = found[f"{BASE}.1.{product}.weight"]
            assert list(source.get_slice(own).get_shape()) == list(each.shape[1:])
            assert torch.equal(source.get_tensor(own), each[1])


@pytest.mark.parametrize("turned", [False, True])
def test_scales_lie_as_their_matrices(tmp_path: Path, turned: bool) -> None:
    """Here for two outputs and three inputs. One scale may be that of all experts."""
    stacked = {
        f"{BASE}.gate_up_proj": torch.randn(2, 8, 6).to(torch.float8_e4m3fn),
        f"{BASE}.gate_up_proj_scale_inv": torch.randn(2, 4, 2),
        f"{BASE}.down_proj": torch.randn(2, 6, 4).to(torch.float8_e4m3fn),
        f"{BASE}.down_proj_scale": torch.randn(2),
        f"{BASE}.down_proj_input_scale": torch.tensor(0.5),
        f"{BASE}.down_proj_bias": torch.randn(2, 6),
    }
    files = {name: (each.mT if turned and each.dim() > 2 else each) for name, each in stacked.items()}
    files[f"{BASE}.down_proj_bias"] = stacked[f"{BASE}.down_proj_bias"]
    save_file({name: each.contiguous() for name, each in files.items()}, tmp_path / "model.safetensors")
    expected = {f"{BASE}.down_proj_bias": stacked[f"{BASE}.down_proj_bias"]}
    for number in range(2):
        expected |= {
            f"{BASE}.{number}.gate_up_proj.weight": stacked[f"{BASE}.gate_up_proj"][number],
            f"{BASE}.{number}.gate_up_proj.weight_scale_inv": stacked[f"{BASE}.gate_up_proj_scale_inv"][
                number
            ],
            f"{BASE}.{number}.down_proj.weight": stacked[f"{BASE}.down_proj"][number],
            f"{BASE}.{number}.down_proj.weight_scale": stacked[f"{BASE}.down_proj_scale"][number],
            f"{BASE}.{number}.down_proj.input_scale": torch.tensor(0.5),
        }
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        found = single_experts({name: (file, name) for name in files}, plain=False)
        assert found.keys() == expected.keys()
        for name, (source, own) in found.items():
            assert torch.equal(source.get_tensor(own).float(), expected[name].float())


def test_plain_experts_are_left_to_transformers(tmp_path: Path) -> None:
    both = {f"{BASE}.gate_up_proj": torch.randn(2, 8, 6), f"{BASE}.down_proj": torch.randn(2, 6, 4)}
    save_file(both, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        files = {name: (file, name) for name in both}
        assert single_experts(files, plain=False) == files
