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
        found = single_experts({name: (file, name) for name in stacked})
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
        found = single_experts({name: (file, name) for name in both})
        for name, each in both.items():
            product = name.rpartition(".")[2]
            source, own = found[f"{BASE}.1.{product}.weight"]
            assert list(source.get_slice(own).get_shape()) == list(each.shape[1:])
            assert torch.equal(source.get_tensor(own), each[1])
