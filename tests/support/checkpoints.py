"""Quantized checkpoints, written number by number as each format's own description has it.

An encoder takes a weight, float32 [out, in], and returns the tensors that a checkpoint has instead, by the
ends of their names, and the weight that they mean, float32 of the same shape.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Encoder = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]

FP8 = torch.float8_e4m3fn

_LEFT = re.compile(r"embed_tokens|lm_head|mlp\.gate\.|block_sparse_moe\.gate\.|shared_expert_gate")
"""Names of weights that stay plain: embeddings, heads and routers."""


def write(
    source: Path, folder: Path, encoder: Encoder, config: Mapping[str, Any], left: re.Pattern[str] = _LEFT
) -> tuple[Path, Path]:
    """Two copies of a checkpoint under `folder`: one quantized, and one with the weights that it means.

    `config`: `quantization_config` of the first. `left`: see `_LEFT`.
    """
    tensors = load_file(source / "model.safetensors")
    stored, meant = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        stored[name] = meant[name] = tensor
        if tensor.dim() == 2 and name.endswith(".weight") and not left.search(name):
            del stored[name]
            found, meant[name] = encoder(tensor.float())
            stored |= {name.removesuffix("weight") + end: each for end, each in found.items()}
    return _saved(source, folder, config, stored, meant)


def write_stacked(
    source: Path, folder: Path, encoder: Encoder, config: Mapping[str, Any]
) -> tuple[Path, Path]:
    """As `write`, of a checkpoint that has the experts of a layer, [experts, in, out], in one tensor.

    `encoder`: of mxfp4, or of weights of one byte, whose scales lie as the weights do.
    """
    tensors = load_file(source / "model.safetensors")
    stored, meant = dict(tensors), dict(tensors)
    for name in [name for name in tensors if re.search(r"experts\.(gate_up|down)_proj$", name)]:
        found = [encoder(expert.T.float()) for expert in stored.pop(name)]
        meant[name] = torch.stack([weight.T for _, weight in found])
        parts = {end: torch.stack([each[end] for each, _ in found]) for end in found[0][0]}
        if "weight_packed" in parts:
            stored[f"{name}_blocks"] = parts["weight_packed"].unflatten(2, (-1, 16))
            stored[f"{name}_scales"] = parts["weight_scale"]
        else:
            stored |= {name + end.removeprefix("weight"): _turned(each) for end, each in parts.items()}
    return _saved(source, folder, config, stored, meant)


def _turned(stacked: Tensor) -> Tensor:
    """Matrices, or scales, of experts as [in, out]. Each scale of a whole weight stays."""
    return stacked.mT if stacked.dim() > 2 else stacked


def _saved(
    source: Path,
    folder: Path,
    config: Mapping[str, Any],
    stored: Mapping[str, Tensor],
    meant: Mapping[str, Tensor],
) -> tuple[Path, Path]:
    values = json.loads((source / "config.json").read_text())
    for kind, each, more in (("stored", stored, {"quantization_config": dict(config)}), ("meant", meant, {})):
        (folder / kind).mkdir(parents=True)
        save_file(
            {name: one.clone(memory_format=torch.contiguous_format) for name, one in each.items()},
            folder / kind / "model.safetensors",
        )
        (folder / kind / "config.json").write_text(json.dumps(values | more))
    return folder / "stored", folder / "meant"


def fp8(rows: int = 0, columns: int = 0, name: str = "weight_scale", powers: bool = False) -> Encoder:
    """fp8 with a scale for each rectangle of this size; 0: of all. `powers`: scales are powers of two, in
    bytes."""

    def encode(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        down, across = rows or len(weight), columns or weight.shape[1]
        numbers, meant = torch.empty_like(weight, dtype=FP8), torch.empty_like(weight)
        scales = torch.empty(-(-len(weight) // down), -(-weight.shape[1] // across))
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                block = slice(i * down, (i + 1) * down), slice(j * across, (j + 1) * across)
                scale = weight[block].abs().max() / 448
                scales[i, j] = 2 ** scale.log2().ceil() if powers else scale
                numbers[block] = (weight[block] / scales[i, j]).to(FP8)
                meant[block] = numbers[block].float() * scales[i, j]
        stored = (scales.log2() + 127).to(torch.uint8) if powers else scales
        return {"weight": numbers, name: stored.flatten()[0] if scales.numel() == 1 else stored}, meant

    return encode


def int8(group: int = 0, zeros: bool = False) -> Encoder:
    """int8 with a scale for each output, or for each `group` of its inputs; with zero points or without."""

    def encode(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        groups = weight.split(group or weight.shape[1], dim=1)
        stored, scales, points, meant = [], [], [], []
        for part in groups:
            high, low = part.amax(1, keepdim=True), part.amin(1, keepdim=True)
            scale = (high - low) / 255 if zeros else part.abs().amax(1, keepdim=True) / 127
            point = (-128 - low / scale).round().clamp(-128, 127) if zeros else torch.zeros_like(scale)
            numbers = (part / scale + point).round().clamp(-128, 127)
            stored.append(numbers)
            scales.append(scale)
            points.append(point)
            meant.append((numbers - point) * scale)
        tensors = {"weight": torch.cat(stored, 1).to(torch.int8), "weight_scale": torch.cat(scales, 1)}
        if zeros:
            tensors["weight_zero_point"] = torch.cat(points, 1).to(torch.int8)
        return tensors, torch.cat(meant, 1)

    return encode


def packed(numbers: Tensor, bits: int = 4, order: Sequence[int] = range(8)) -> Tensor:
    """Numbers [rows, n] as int32 [rows, words], with zeros at the end. `order`: the number at each place."""
    each = 32 // bits
    words = torch.zeros(len(numbers), -(-numbers.shape[1] // each), dtype=torch.int64)
    for place in range(each):
        at = order[place] if bits == 4 else place
        column = numbers[:, at::each].long()
        words[:, : column.shape[1]] |= column << bits * place
    return words.to(torch.int32)  # the same 32 bits


def _grouped(
    weight: Tensor, bits: int, groups: Tensor, symmetric: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Numbers without signs, scales of float16 and zeros [out, groups], and the weight that they mean.

    `groups`: group of each input.
    """
    most = 2**bits - 1
    numbers, meant = torch.empty_like(weight), torch.empty_like(weight)
    count = int(groups.max()) + 1
    scales, zeros = torch.empty(len(weight), count).half(), torch.empty(len(weight), count)
    for group in range(count):
        mine = groups == group
        part = weight[:, mine]
        high, low = part.amax(1).clamp(min=0), part.amin(1).clamp(max=0)
        scale = (2 * part.abs().amax(1) / most if symmetric else (high - low) / most).half()
        zero = (
            torch.full_like(high, (most + 1) / 2)
            if symmetric
            else (-low / scale.float()).round().clamp(1, most)
        )
        found = (part / scale.float()[:, None] + zero[:, None]).round().clamp(0, most)
        numbers[:, mine], scales[:, group], zeros[:, group] = found, scale, zero
        meant[:, mine] = (found - zero[:, None]) * scale.float()[:, None]
    return numbers, scales, zeros, meant


def gptq(
    bits: int = 4, group: int = 8, symmetric: bool = False, ordered: bool = False, lower: int = 1
) -> Encoder:
    """`ordered`: inputs of a group lie anywhere (desc_act). `lower`: zeros are stored lower by it."""

    def encode(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        inputs = weight.shape[1]
        groups = torch.arange(inputs) // (group if group > 0 else inputs)
        if ordered:
            groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
        numbers, scales, zeros, meant = _grouped(weight, bits, groups, symmetric)
        tensors = {
            "qweight": packed(numbers, bits).t(),
            "qzeros": packed(zeros.t() - lower, bits),
            "scales": scales.t(),
            "g_idx": groups.int(),
        }
        return tensors, meant

    return encode


def awq(group: int = 8) -> Encoder:
    def encode(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        numbers, scales, zeros, meant = _grouped(weight, 4, torch.arange(weight.shape[1]) // group)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        tensors = {
            "qweight": packed(numbers.t(), 4, order),
            "qzeros": packed(zeros.t(), 4, order),
            "scales": scales.t(),
        }
        return tensors, meant

    return encode


def pack_quantized(bits: int = 4, group: int = 8, zeros: bool = False, ordered: bool = False) -> Encoder:
    """`group`: 0: all inputs. `ordered`: as of `gptq`."""

    def encode(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        inputs = weight.shape[1]
        groups = torch.arange(inputs) // (group or inputs)
        if ordered:
            groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
        numbers, scales, points, meant = _grouped(weight, bits, groups, symmetric=not zeros)
        tensors = {
            "weight_packed": packed(numbers, bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if zeros:
            tensors["weight_zero_point"] = packed(points.t(), bits).t()
        if ordered:
            tensors["weight_g_idx"] = groups.int()
        return tensors, meant

    return encode


def bitsandbytes(block: int = 8, nested: bool = False) -> Encoder:
    """4 bits with a table of numbers. `nested`: scales are quantized, too."""
    table = torch.linspace(-1, 1, 16) ** 3
    nested_table = torch.linspace(-1, 1, 256)

    def encode(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        blocks = weight.reshape(-1, block)
        scales = blocks.abs().amax(1)
        state = {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": list(weight.shape)}
        tensors = {}
        if nested:
            offset = float(scales.mean())
            parts = (scales - offset).split(16)
            most = torch.stack([part.abs().max() for part in parts])
            shares = (scales - offset) / most.repeat_interleave(16)[: len(scales)]
            stored = ((shares + 1) * 127.5).round()
            tensors = {"weight.nested_absmax": most, "weight.nested_quant_map": nested_table}
            state |= {"nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": offset}
            scales = nested_table[stored.int()] * most.repeat_interleave(16)[: len(scales)] + offset
        places = ((blocks / scales[:, None])[..., None] - table).abs().argmin(-1)
        pairs = places.flatten().to(torch.uint8)
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        tensors |= {
            "weight": (pairs[::2] << 4 | pairs[1::2])[:, None],
            "weight.absmax": stored.to(torch.uint8) if nested else scales,
            "weight.quant_map": table,
            "weight.quant_state.bitsandbytes__nf4": text,
        }
        return tensors, (table[places] * scales[:, None]).reshape(weight.shape)

    return encode


def bitsandbytes_int8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    most = weight.abs().amax(1)
    numbers = (weight / most[:, None] * 127).round()
    row_major = torch.zeros((), dtype=torch.uint8)
    tensors = {"weight": numbers.to(torch.int8), "SCB": most, "weight_format": row_major}
    return tensors, numbers * (most[:, None] / 127)


def fp4(name: str = "nvfp4") -> Encoder:
    """nvfp4, mxfp4, or modelopt: NVFP4 as Model Optimizer writes it."""
    size = 32 if name == "mxfp4" else 16
    known = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])

    def encode(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        whole = weight.abs().max() / (448 * 6)
        places, meant = torch.zeros(weight.shape, dtype=torch.uint8), torch.empty_like(weight)
        scales, stored = [], []
        for first in range(0, weight.shape[1], size):
            part = weight[:, first : first + size]
            wanted = part.abs().amax(1) / 6
            if name == "mxfp4":
                stored.append((wanted.log2().ceil() + 127).to(torch.uint8))
                scale = 2.0 ** (stored[-1].float() - 127)
            else:
                stored.append((wanted / whole).to(FP8))
                scale = stored[-1].float() / (1 / whole) if name == "nvfp4" else stored[-1].float() * whole
            scales.append(scale)
            nearest = (part.abs()[..., None] / scale[:, None, None] - known).abs().argmin(-1)
            places[:, first : first + size] = nearest + 8 * (part < 0)
            meant[:, first : first + size] = known[nearest] * part.sign() * scale[:, None]
        numbers = places[:, ::2] | places[:, 1::2] << 4
        tensors = {"weight_scale": torch.stack([one.view(torch.uint8) for one in stored], 1)}
        if name != "mxfp4":
            tensors["weight_scale"] = tensors["weight_scale"].view(FP8)
        if name == "modelopt":
            return tensors | {"weight": numbers, "weight_scale_2": whole}, meant
        whole_scale = {"weight_global_scale": (1 / whole)[None]} if name == "nvfp4" else {}
        return tensors | {"weight_packed": numbers} | whole_scale, meant

    return encode


def mixed(*encoders: Encoder) -> Encoder:
    """Each weight has one of several formats, which its bytes choose, so that the order of tests does not."""

    def encode(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return encoders[int(weight.contiguous().view(torch.uint8).sum()) % len(encoders)](weight)

    return encode
