"""Models with random weights in the checkpoint formats that other tools write: speed and memory depend on
shape and format alone.

    awq, gptq, w4a16                 4 bits, in groups of 128 inputs; w4a16 has no zero points
    int8, fp8, nvfp4                 a scale for each output; for squares of 128 x 128; for 16 inputs
    q4_k_m, q8_0                     GGUF files, with the mixture of types that llama.cpp's quantizer makes
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, default_rng
from safetensors.torch import save_file
from torch import Tensor

from ops.bench.rig.shapes import (
    DEVIATION,
    MAX_LENGTH,
    SHAPES,
    Shape,
    cache_folder,
    made,
    tensors,
    tokenizer,
)
from ops.tiny_model.training.tokenizer import save_tokenizer

GROUP = 128
SQUARE = 128
FP8 = torch.float8_e4m3fn

Draw = Callable[[int, int, Generator], dict[str, Tensor]]
"""The tensors of a weight [out, in], by the ends of their names."""


def _octets(rows: int, columns: int, chance: Generator) -> Tensor:
    """Random bits."""
    return torch.from_numpy(chance.integers(256, size=(rows, columns), dtype=np.uint8))


def _words(rows: int, columns: int, chance: Generator) -> Tensor:
    return _octets(rows, 4 * columns, chance).view(torch.int32)


def _scales(rows: int, columns: int, largest: float, chance: Generator) -> Tensor:
    """Scales with which numbers of up to `largest` have a standard deviation of about `DEVIATION`."""
    shares = chance.random((rows, columns), dtype=np.float32) + 0.5
    return torch.from_numpy(shares * np.float32(DEVIATION * 1.7 / largest))


def _awq(out: int, inputs: int, chance: Generator) -> dict[str, Tensor]:
    groups = -(-inputs // GROUP)
    return {
        "qweight": _words(inputs, out // 8, chance),
        "qzeros": torch.full((groups, out // 8), 0x77777777, dtype=torch.int32),
        "scales": _scales(groups, out, 8, chance).half(),
    }


def _gptq(out: int, inputs: int, chance: Generator) -> dict[str, Tensor]:
    tensors = _awq(out, inputs, chance) | {"qweight": _words(inputs // 8, out, chance)}
    return tensors | {"g_idx": torch.arange(inputs, dtype=torch.int32) // GROUP}


def _w4a16(out: int, inputs: int, chance: Generator) -> dict[str, Tensor]:
    return {
        "weight_packed": _words(out, inputs // 8, chance),
        "weight_scale": _scales(out, -(-inputs // GROUP), 8, chance).half(),
        "weight_shape": torch.tensor([out, inputs]),
    }


def _int8(out: int, inputs: int, chance: Generator) -> dict[str, Tensor]:
    numbers = _octets(out, inputs, chance).view(torch.int8)
    return {"weight": numbers, "weight_scale": _scales(out, 1, 127, chance)}


def _fp8(out: int, inputs: int, chance: Generator) -> dict[str, Tensor]:
    """As quantizers scale weights: the largest of a square is about the largest number that there is."""
    deviation = 448 / 4
    drawn = torch.from_numpy(chance.standard_normal((out, inputs), dtype=np.float32)) * deviation
    squares = _scales(-(-out // SQUARE), -(-inputs // SQUARE), deviation * 1.7, chance)
    return {"weight": drawn.clamp(-448, 448).to(FP8), "weight_scale_inv": squares}


def _nvfp4(out: int, inputs: int, chance: Generator) -> dict[str, Tensor]:
    return {
        "weight_packed": _octets(out, inputs // 2, chance),
        "weight_scale": _scales(out, inputs // 16, DEVIATION * 1.7, chance).to(FP8),
        "weight_global_scale": torch.tensor([6 / (DEVIATION * 1.7)]),
    }


def _compressed(kind: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "format": kind, "config_groups": {"group_0": group}}


@dataclass(frozen=True)
class Form:
    """A format of safetensors files."""

    draw: Draw
    config: Mapping[str, Any]
    """`quantization_config`."""


FORMATS: Mapping[str, Form] = {
    "awq": Form(_awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}),
    "gptq": Form(_gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}),
    "w4a16": Form(_w4a16, _compressed("pack-quantized", num_bits=4, strategy="group", group_size=GROUP)),
    "int8": Form(_int8, _compressed("int-quantized", num_bits=8, strategy="channel")),
    "fp8": Form(_fp8, {"quant_method": "fp8", "weight_block_size": [SQUARE, SQUARE]}),
    "nvfp4": Form(_nvfp4, _compressed("nvfp4-pack-quantized", strategy="tensor_group", group_size=16)),
}
BLOCKS = {"Q8_0": (8, 32, 34, (0,)), "Q4_K": (12, 256, 144, (0, 2)), "Q6_K": (14, 256, 210, (208,))}
"""Of a type of GGUF: its number, weights and bytes of a block, and the places of its factors, float16."""
GGUFS = ("q4_k_m", "q8_0")
_NAMES = {
    **{"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"},
    **{"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"},
    **{f"self_attn.{one}_proj": f"attn_{one}" for one in "qkv"} | {"self_attn.o_proj": "attn_output"},
    **{f"mlp.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")},
}
"""llama.cpp's names of tensors."""


def made_in(form: str, shape: str, folder: Path | None = None) -> Path:
    """The directory, or the GGUF file, of a model of this shape in this format, in `folder` (default: the
    user's cache). `bfloat16` is not quantized. The model is written first if it is not there."""
    if form == "bfloat16":
        return made(shape, folder=folder)
    base, name = folder or cache_folder(), f"{shape}-{form}"
    if form in GGUFS:
        if not (file := base / f"{name}.gguf").exists():
            write_gguf(SHAPES[shape], form, file)
        return file
    if not (base / name / "config.json").exists():
        write(SHAPES[shape], form, base / name)
    return base / name


def write(shape: Shape, form: str, directory: Path) -> None:
    """Write a model with random quantized weights of products. Embeddings, norms and head are bfloat16.
    config.json comes last, so a directory with it has a complete model."""
    directory.mkdir(parents=True, exist_ok=True)
    chance, written = default_rng(0), dict[str, Tensor]()
    for name, sizes in tensors(shape):
        if name.endswith("_proj.weight"):
            out, inputs = sizes
            drawn = FORMATS[form].draw(out, inputs, chance)
            written |= {name.removesuffix("weight") + end: each for end, each in drawn.items()}
        elif len(sizes) == 1:
            written[name] = torch.ones(sizes, dtype=torch.bfloat16)
        else:
            numbers = chance.standard_normal(sizes, dtype=np.float32)
            written[name] = torch.from_numpy(numbers).mul_(DEVIATION).bfloat16()
    save_file(written, directory / "model.safetensors", {"format": "pt"})
    save_tokenizer(tokenizer(shape.vocabulary), directory, MAX_LENGTH)
    values = shape.config() | {"quantization_config": FORMATS[form].config}
    (directory / "config.json").write_text(json.dumps(values, indent=2) + "\n")


def write_gguf(shape: Shape, form: str, path: Path) -> None:
    """Write a GGUF file (github.com/ggml-org/ggml/blob/master/docs/gguf.md) of this shape: a header, then the
    tensors, each at a multiple of 32 bytes."""
    values = _values(shape)
    places = list(_typed_tensors(shape, form))
    header = b"GGUF" + struct.pack("<IQQ", 3, len(places), len(values))
    header += b"".join(gguf_text(key) + gguf_value(value) for key, value in values.items())
    start = 0
    for name, kind, sizes in places:
        header += gguf_text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *reversed(sizes))
        number, weights, octets = BLOCKS[kind][:3] if kind else (0, 1, 4)
        header += struct.pack("<IQ", number, start)
        start += -(-torch.Size(sizes).numel() // weights * octets // 32) * 32
    chance, part = default_rng(0), path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    with part.open("wb") as file:
        file.write(header + bytes(-len(header) % 32))
        for _, kind, sizes in places:
            content = _blocks(kind, sizes, chance) if kind else struct.pack("<f", 1.0) * sizes[0]
            file.write(content + bytes(-len(content) % 32))
    part.rename(path)


def _typed_tensors(shape: Shape, form: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Name, type and shape of each tensor. No type: float32."""
    plain, more = ("Q4_K", "Q6_K") if form == "q4_k_m" else ("Q8_0", "Q8_0")
    eighth = shape.layers // 8
    for name, sizes in tensors(shape):
        stem = name.removesuffix(".weight")
        number, _, own = stem.removeprefix("model.layers.").partition(".")
        if stem in _NAMES:
            table = "" if len(sizes) == 1 else plain if name.startswith("model") and not shape.tied else more
            yield f"{_NAMES[stem]}.weight", table, sizes
            continue
        layer = int(number)
        # As llama.cpp's quantizer: the first and the last eighth, and every third between them.
        among = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        wide = among and own in ("self_attn.v_proj", "mlp.down_proj")
        kind = "" if len(sizes) == 1 else more if wide else plain
        yield f"blk.{layer}.{_NAMES[own]}.weight", kind, sizes


def _values(shape: Shape) -> dict[str, Any]:
    config, model = shape.config(), json.loads(tokenizer(shape.vocabulary).to_str())["model"]
    words = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [each if isinstance(each, str) else " ".join(each) for each in model["merges"]]
    return {
        "general.architecture": "llama",
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": shape.hidden,
        "llama.block_count": shape.layers,
        "llama.feed_forward_length": shape.intermediate,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "llama.rope.freq_base": config["rope_parameters"]["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [1] * len(words),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }


def _blocks(kind: str, sizes: tuple[int, ...], chance: Generator) -> bytes:
    """Random blocks. Their weights have a standard deviation of about `DEVIATION`."""
    _, weights, octets, factors = BLOCKS[kind]
    count = torch.Size(sizes).numel() // weights
    blocks = _octets(count, octets, chance)
    numbers = {"Q8_0": (73.0,), "Q6_K": (73 * 18.5,), "Q4_K": (260.0, 260 / 7.5)}[kind]
    for at, number in zip(factors, numbers, strict=True):
        blocks[:, at : at + 2] = torch.full((count, 1), DEVIATION / number).half().view(torch.uint8)
    return blocks.numpy().tobytes()


def gguf_text(text: str) -> bytes:
    """A string as GGUF files have it: its length in bytes, and its bytes."""
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(value: Any) -> bytes:
    """A value with the number of its type before it.

    A list has the type of its first value. Its whole numbers have signs: llama.cpp wants that of token types.
    """
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + gguf_text(value)
        case list():
            each = [gguf_value(one) for one in value]
            kind = each[0][:4] if each else struct.pack("<I", 5)
            if kind == struct.pack("<I", 4):
                kind = struct.pack("<I", 5)
            return (
                struct.pack("<I", 9) + kind + struct.pack("<Q", len(each)) + b"".join(one[4:] for one in each)
            )
    raise TypeError(f"no type of GGUF for {value!r}")
