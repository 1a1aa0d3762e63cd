"""Experts whose tensors lie stacked in one tensor of a layer, as in gpt-oss and Qwen3-VL, by the names of
single experts.

    in the file                                                   of expert 3
    experts.gate_up_proj          [experts, in, out]              experts.3.gate_up_proj.weight  [out, in]
    experts.gate_up_proj_bias     [experts, out]                  experts.3.gate_up_proj.bias
    experts.gate_up_proj_scale    [experts, in, out], of blocks   experts.3.gate_up_proj.weight_scale
    experts.gate_up_proj_blocks   [experts, out, groups, bytes]   experts.3.gate_up_proj.weight_packed
    experts.gate_up_proj_scales   [experts, out, groups]          experts.3.gate_up_proj.weight_scale
    input_linear.weight           [experts, out, in], of Granite  experts.3.input_linear.weight

Those of `_blocks` are MXFP4, as `formats/fp4.py` reads it. Scales of weights of one byte
(`formats/scaled.py`) have several names, and may be one number for all experts. Matrices of Qwen3-VL are
[experts, out, in] if transformers 5 has written them. Their shapes tell: gate_up has twice as many outputs as
down has inputs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

_MATRICES = {
    "": "weight",
    "_scale": "weight_scale",  # Llama 4
    "_weight_scale": "weight_scale",  # Model Optimizer
    "_scale_inv": "weight_scale_inv",  # transformers
}
_ENDS = _MATRICES | {
    "_blocks": "weight_packed",
    "_scales": "weight_scale",
    "_bias": "bias",
    "_input_scale": "input_scale",
    "_activation_scale": "activation_scale",
}
_GRANITE = re.compile(r"(.*\.block_sparse_moe\.)((?:in|out)put_linear\.weight)")
_STACKED = re.compile(rf"(.*\.experts\.)(gate_up_proj|down_proj)({'|'.join(_ENDS)})")


@dataclass(frozen=True, slots=True)
class Expert:
    """An open safetensors file that shows one expert of each stacked tensor."""

    file: Any
    number: int
    turned: bool
    """The matrix, or the scales of its blocks, lies in the file as [in, out]."""

    def get_slice(self, name: str) -> "Expert._Shape":
        """As of a safetensors file. Only the shape is known."""
        shape = self.file.get_slice(name).get_shape()[1:]
        if name.endswith("_blocks"):
            shape = [shape[0], shape[1] * shape[2]]
        return Expert._Shape(shape[::-1] if self.turned else shape)

    def get_tensor(self, name: str) -> Tensor:
        """The expert's tensor. The other experts' are not read."""
        found: Tensor = self.file.get_slice(name)[self.number]
        if name.endswith("_blocks"):
            return found.flatten(1)
        return found.T if self.turned and found.dim() == 2 else found

    @dataclass(frozen=True, slots=True)
    class _Shape:
        shape: list[int]

        def get_shape(self) -> list[int]:
            return self.shape


def single_experts(files: Mapping[str, tuple[Any, str]], plain: bool) -> dict[str, tuple[Any, str]]:
    """The tensors of a checkpoint, those of stacked experts by single expert.

    `files`: for each tensor its open file, and its name in the file. `plain`: experts that are not quantized
    are split, too, and biases.
    """
    found = dict[str, tuple[Any, str]]()
    for name, (file, own) in files.items():
        if plain and (granite := _GRANITE.fullmatch(name)):
            prefix, end = granite.groups()
            for number in range(_experts(files, name)):
                found[f"{prefix}experts.{number}.{end}"] = Expert(file, number, False), own
            continue
        match = _STACKED.fullmatch(name)
        prefix, product, end = match.groups() if match else ("", "", "")
        split = match and (plain or (end != "_bias" and _quantized(files, prefix + product)))
        experts = _experts(files, prefix + product) if split else 0
        if not experts:
            found[name] = file, own
            continue
        for_all = file.get_slice(own).get_shape()[:1] != [experts]
        turned = end in _MATRICES and not _outputs_first(files, prefix)
        for number in range(experts):
            one = file if for_all else Expert(file, number, turned)
            found[f"{prefix}{number}.{product}.{_ENDS[end]}"] = one, own
    return found


def _quantized(files: Mapping[str, tuple[Any, str]], name: str) -> bool:
    """Whether the stacked matrices `name` have scales."""
    return any(name + end in files for end in ("_scales", *_MATRICES) if end)


def _experts(files: Mapping[str, tuple[Any, str]], name: str) -> int:
    """Number of the stacked matrices `name`. 0: there are none."""
    found = next((files[name + end] for end in ("", "_blocks") if name + end in files), None)
    shape = [] if found is None else found[0].get_slice(found[1]).get_shape()
    return shape[0] if shape else 0


def _outputs_first(files: Mapping[str, tuple[Any, str]], prefix: str) -> bool:
    """Whether the matrices of a layer's experts are [experts, out, in] instead of [experts, in, out]."""
    names = (f"{prefix}gate_up_proj", f"{prefix}down_proj")
    if not all(name in files for name in names):
        return False
    (_, both, size), (_, out, inner) = (
        files[name][0].get_slice(files[name][1]).get_shape() for name in names
    )
    return bool(both == 2 * inner and size == out)
