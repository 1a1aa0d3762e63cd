"""GGUF files, written as the format's description has them, and tiny models in them.

Quantized weights are random blocks. What these mean is computed by transformers.
"""

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.gguf.dequant import dequantize

KINDS: dict[str, tuple[int, int, int, int | None, float]] = {
    "Q4_0": (2, 32, 0, None, 0),
    "Q4_1": (3, 32, 0, 2, -7.5),
    "Q5_0": (6, 32, 0, None, 0),
    "Q5_1": (7, 32, 0, 2, -15.5),
    "Q8_0": (8, 32, 0, None, 0),
    "Q2_K": (10, 256, 80, 82, 1.5),
    "Q3_K": (11, 256, 108, None, 0),
    "Q4_K": (12, 256, 0, 2, 7.5),
    "Q5_K": (13, 256, 0, 2, 15.5),
    "Q6_K": (14, 256, 208, None, 0),
}
"""Number of the type; weights of a block; places of scale and minimum in its bytes; the minimum, for a scale
of 1, with which weights have a mean of about zero."""
BYTES = {
    **{"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34},
    **{"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210},
}
PLAIN = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}

Written = Mapping[str, tuple[int, tuple[int, ...], bytes]]
"""Number of the type, shape and bytes of each tensor."""


def random_blocks(kind: str, rows: int, columns: int, std: float = 0.06, seed: int = 0) -> Tensor:
    """Rows of random blocks, uint8, whose weights have a standard deviation of `std`."""
    number, weights, scale_at, least_at, least = KINDS[kind]
    drawn = torch.Generator().manual_seed(seed + number)
    count = rows * columns // weights
    blocks = torch.randint(256, (count, BYTES[kind]), generator=drawn, dtype=torch.uint8)
    shares = 0.5 + torch.rand(count, 1, generator=drawn)

    def fill(scale: float) -> Tensor:
        for at, factor in ((scale_at, 1.0), (least_at, least)):
            if at is not None:
                blocks[:, at : at + 2] = (shares * scale * factor).half().view(torch.uint8).view(count, 2)
        return meant(kind, blocks.view(rows, -1))

    fill(std / fill(1.0).std().item())
    return blocks.view(rows, -1)


def meant(kind: str, stored: Tensor) -> Tensor:
    """What rows of blocks mean, float32 [rows, columns], by transformers where it has the type."""
    blocks = stored.reshape(-1, BYTES[kind])
    if kind.startswith("Q5_") and kind != "Q5_K":
        return torch.tensor([_five_bits(kind, block) for block in blocks.tolist()]).reshape(len(stored), -1)
    return dequantize(blocks, KINDS[kind][0], torch.float32).reshape(len(stored), -1)


def _five_bits(kind: str, block: list[int]) -> list[float]:
    """The 32 weights of a block of Q5_0 or Q5_1, one after the other."""
    begin = 2 if kind == "Q5_0" else 4
    halves = struct.unpack(f"<{begin // 2}e", bytes(block[:begin]))
    high = int.from_bytes(bytes(block[begin : begin + 4]), "little")
    found = []
    for place in range(32):
        octet = block[begin + 4 + place % 16]
        number = (octet >> 4 if place >= 16 else octet & 15) + 16 * (high >> place & 1)
        found.append(halves[0] * (number - 16) if kind == "Q5_0" else halves[0] * number + halves[1])
    return found


def write_gguf(path: Path, values: Mapping[str, Any], tensors: Written, alignment: int = 32) -> Path:
    """A file with these values and tensors."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, value in values.items():
        header += _text(key) + _typed(value)
    data = b""
    for name, (number, shape, content) in tensors.items():
        sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        header += _text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", number, len(data))
        data += content + bytes(-len(content) % alignment)
    path.write_bytes(header + bytes(-len(header) % alignment) + data)
    return path


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: Any) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case list():
            each = [_typed(one) for one in value]
            kind = each[0][:4] if each else struct.pack("<I", 4)
            return (
                struct.pack("<I", 9) + kind + struct.pack("<Q", len(each)) + b"".join(one[4:] for one in each)
            )
    raise TypeError(value)


_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def name_of(name: str, architecture: str) -> str:
    """llama.cpp's name of a tensor."""
    stem, _, end = name.rpartition(".")
    if stem == "lm_head":
        return f"output.{end}"
    parts = stem.removeprefix("model.").split(".", 2)
    if parts[0] != "layers":
        return {"embed_tokens": "token_embd", "norm": "output_norm"}[parts[0]] + f".{end}"
    around = architecture in ("gemma2", "gemma3")
    after = "post_attention_norm" if around else "ffn_norm"
    names = {**_LAYER, "post_attention_layernorm": after}
    return f"blk.{parts[1]}.{names[parts[2]]}.{end}"


def paired(weight: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys as llama.cpp's converter orders those of Llama."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def model_file(
    source: Path,
    folder: Path,
    architecture: str,
    values: Mapping[str, Any],
    kind_of: Callable[[str], str | None],
) -> tuple[Path, Path]:
    """A model as a GGUF file, and a copy of `source` with the weights that it means.

    `values`: without the prefix `architecture` where they have none of their own. `kind_of`: type of a matrix
    by llama.cpp's name; None: it stays plain.
    """
    config = json.loads((source / "config.json").read_text())
    tensors: dict[str, tuple[int, tuple[int, ...], bytes]] = {}
    plain: dict[str, Tensor] = {}
    for seed, (name, tensor) in enumerate(sorted(load_file(source / "model.safetensors").items())):
        own = name_of(name, architecture)
        kind = kind_of(own) if tensor.dim() == 2 else None
        if kind is None:
            plain[name] = tensor.float()
            kept = (
                tensor.float() + 1 if architecture.startswith("gemma") and "norm" in own else tensor.float()
            )
        else:
            rows, columns = tensor.shape
            kept = random_blocks(kind, rows, columns, seed=100 * seed)
            plain[name] = meant(kind, kept)
        if architecture == "llama" and "proj" in name and own.split(".")[-2] in ("attn_q", "attn_k"):
            heads = "num_attention_heads" if "attn_q" in own else "num_key_value_heads"
            kept = paired(kept, config[heads])
        number = 0 if kind is None else KINDS[kind][0]
        tensors[own] = number, tuple(tensor.shape), kept.contiguous().numpy().tobytes()
    every = {
        "general.architecture": architecture,
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        **values,
    }
    own_key = ("general.", "tokenizer.", "split.")
    named = {key if key.startswith(own_key) else f"{architecture}.{key}": each for key, each in every.items()}
    (folder / "meant").mkdir(parents=True)
    save_file({key: one.contiguous() for key, one in plain.items()}, folder / "meant" / "model.safetensors")
    (folder / "meant" / "config.json").write_text(json.dumps(config | {"dtype": "float32"}))
    return write_gguf(folder / "tiny.gguf", named, tensors), folder / "meant"


def tokens(count: int) -> dict[str, Any]:
    """Values of a byte-level tokenizer with `count` tokens, without merges."""
    texts = [chr(33 + number) if number < 90 else f"<{number}>" for number in range(count)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [1] * count,
        "tokenizer.ggml.merges": ["! !"],
        "tokenizer.ggml.eos_token_id": 1,
    }
