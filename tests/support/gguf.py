"""GGUF files, written as the format's description has them, and tiny models in them.

Quantized weights are random blocks. What these mean is computed by transformers, or here by the description.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.integrations.gguf.dequant import dequantize

from ops.bench.rig.formats import gguf_text, gguf_value

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
    **{"IQ2_XXS": (16, 256, 0, None, 0), "IQ2_XS": (17, 256, 0, None, 0), "IQ3_XXS": (18, 256, 0, None, 0)},
    **{"IQ1_S": (19, 256, 0, None, 0), "IQ4_NL": (20, 32, 0, None, 0), "IQ3_S": (21, 256, 0, None, 0)},
    **{"IQ2_S": (22, 256, 0, None, 0), "IQ4_XS": (23, 256, 0, None, 0), "IQ1_M": (29, 256, 49, None, 0)},
    **{"TQ1_0": (34, 256, 52, None, 0), "TQ2_0": (35, 256, 64, None, 0), "MXFP4": (39, 32, 0, None, 0)},
}
"""Number of the type; weights of a block; places of scale and minimum in its bytes; the minimum, for a scale
of 1, with which weights have a mean of about zero. The scale of IQ1_M has 4 bits in every other byte from its
place on, that of MXFP4 is a power of two."""
BYTES = {
    **{"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34},
    **{"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210},
    **{"IQ2_XXS": 66, "IQ2_XS": 74, "IQ3_XXS": 98, "IQ1_S": 50, "IQ4_NL": 18, "IQ3_S": 110, "IQ2_S": 82},
    **{"IQ4_XS": 136, "IQ1_M": 56, "TQ1_0": 54, "TQ2_0": 66, "MXFP4": 17},
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
        if kind == "MXFP4":
            blocks[:, 0] = (127 + (shares[:, 0] * scale).log2().round()).to(torch.uint8)
            return meant(kind, blocks.view(rows, -1))
        if kind == "IQ1_M":
            bits = (shares[:, 0] * scale).half().view(torch.int16).int()
            for part in range(4):
                at = 49 + 2 * part
                blocks[:, at] = blocks[:, at] & 15 | ((bits >> 4 * part & 15) << 4).to(torch.uint8)
            return meant(kind, blocks.view(rows, -1))
        for at, factor in ((scale_at, 1.0), (least_at, least)):
            if at is not None:
                blocks[:, at : at + 2] = (shares * scale * factor).half().view(torch.uint8).view(count, 2)
        return meant(kind, blocks.view(rows, -1))

    fill(std / fill(1.0).std().item())
    return blocks.view(rows, -1)


def meant(kind: str, stored: Tensor) -> Tensor:
    """What rows of blocks mean, float32 [rows, columns], by transformers where it has the type."""
    blocks = stored.reshape(-1, BYTES[kind])
    if (by_hand := _BY_HAND.get(kind)) is not None:
        return torch.tensor([by_hand(kind, block) for block in blocks.tolist()]).reshape(len(stored), -1)
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


def _ternary(kind: str, block: list[int]) -> list[float]:
    """The 256 weights of a block of TQ1_0 or TQ2_0, one after the other."""
    (scale,) = struct.unpack("<e", bytes(block[-2:]))
    if kind == "TQ2_0":
        numbers = [block[at // 128 * 32 + at % 32] >> at % 128 // 32 * 2 & 3 for at in range(256)]
    else:
        places = [(at % 32, at // 32) for at in range(160)]
        places += [(32 + at % 16, at // 16) for at in range(80)]
        places += [(48 + at % 4, at // 4) for at in range(16)]
        numbers = [block[at] * 3**digit % 256 * 3 // 256 for at, digit in places]
    return [scale * (number - 1) for number in numbers]


def _fp4(kind: str, block: list[int]) -> list[float]:
    """The 32 weights of a block of MXFP4, one after the other."""
    numbers = [octet & 15 for octet in block[1:]] + [octet >> 4 for octet in block[1:]]
    sizes = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
    return [2.0 ** (block[0] - 127) * sizes[number & 7] * (-1 if number > 7 else 1) for number in numbers]


_BY_HAND = {"Q5_0": _five_bits, "Q5_1": _five_bits, "TQ1_0": _ternary, "TQ2_0": _ternary, "MXFP4": _fp4}
"""Types that transformers does not have."""


def write_gguf(path: Path, values: Mapping[str, Any], tensors: Written, alignment: int = 32) -> Path:
    """A file with these values and tensors."""
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, value in values.items():
        header += gguf_text(key) + gguf_value(value)
    data = b""
    for name, (number, shape, content) in tensors.items():
        sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        header += (
            gguf_text(name) + struct.pack("<I", len(shape)) + sizes + struct.pack("<IQ", number, len(data))
        )
        data += content + bytes(-len(content) % alignment)
    path.write_bytes(header + bytes(-len(header) % alignment) + data)
    return path


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
    **{"mlp.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp"},
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    **{f"mlp.experts.{one}_proj": f"ffn_{one}_exps" for one in ("gate", "up", "down")},
    **{f"mlp.shared_expert.{one}_proj": f"ffn_{one}_shexp" for one in ("gate", "up", "down")},
    **{f"mlp.shared_experts.{one}_proj": f"ffn_{one}_shexp" for one in ("gate", "up", "down")},
    "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w2": "ffn_down_exps",
    "block_sparse_moe.experts.w3": "ffn_up_exps",
    **{"self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm"},
    **{"self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm"},
    **{"self_attn.q_b_proj": "attn_q_b", "self_attn.kv_b_proj": "attn_kv_b"},
    **{"self_attn.k_b": "attn_k_b", "self_attn.v_b": "attn_v_b"},
    **{"linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate"},
    **{"linear_attn.in_proj_a": "ssm_alpha", "linear_attn.in_proj_b": "ssm_beta"},
    **{"linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out"},
    **{"operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output"},
    **{"self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm"},
    **{f"conv.{one}": f"shortconv.{one}" for one in ("conv", "in_proj", "out_proj")},
    **{"feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up"},
    "feed_forward.gate": "ffn_gate_inp",
    "feed_forward.experts.w1": "ffn_gate_exps",
    "feed_forward.experts.w2": "ffn_down_exps",
    "feed_forward.experts.w3": "ffn_up_exps",
    **{"mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d", "mamba.norm": "ssm_norm"},
    "mamba.out_proj": "ssm_out",
    **{f"self_attn.{one}_{part}_proj": f"ssm_{one}_{part}" for one in ("f", "g") for part in ("a", "b")},
    **{f"self_attn.{one}_conv1d": f"ssm_conv1d_{one}" for one in ("q", "k", "v")},
    **{"self_attn.b_proj": "ssm_beta", "self_attn.o_norm": "ssm_norm"},
    **{f"block_sparse_moe.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")},
    **{f"block_sparse_moe.shared_experts.{one}_proj": f"ffn_{one}_shexp" for one in ("gate", "up", "down")},
    **{f"feed_forward.{one}_proj": f"ffn_{one}" for one in ("gate", "up", "down")},
    **{"norm": "attn_norm", "mixer.gate": "ffn_gate_inp", "mixer.o_proj": "attn_output"},
    **{f"mixer.{one}_proj": f"attn_{one}" for one in ("q", "k", "v")},
    **{f"mixer.{one}_proj": f"ffn_{one}" for one in ("up", "down")},
    **{f"mixer.experts.{one}_proj": f"ffn_{one}_exps" for one in ("up", "down")},
    **{f"mixer.shared_experts.{one}_proj": f"ffn_{one}_shexp" for one in ("up", "down")},
    **{"mixer.fc1_latent_proj": "ffn_latent_down", "mixer.fc2_latent_proj": "ffn_latent_up"},
    **{"mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d", "mixer.norm": "ssm_norm"},
    "mixer.out_proj": "ssm_out",
    **{one: f"nextn.{one}" for one in ("eh_proj", "enorm", "hnorm")},
    "shared_head.norm": "nextn.shared_head_norm",
}
_WHOLE = {
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias",
    "self_attn.sinks": "attn_sinks.weight",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    **{"mamba.A_log": "ssm_a", "mamba.D": "ssm_d", "mamba.dt_bias": "ssm_dt.bias"},
    **{"mixer.A_log": "ssm_a", "mixer.D": "ssm_d", "mixer.dt_bias": "ssm_dt.bias"},
    "mixer.gate.e_score_correction_bias": "exp_probs_b.bias",
    "pre_ff_layernorm.weight": "ffn_norm",
    **{"self_attn.A_log": "ssm_a", "self_attn.dt_bias": "ssm_dt.bias"},
    "block_sparse_moe.gate.e_score_correction_bias": "exp_probs_b.bias",
}

_GEMMA4 = {
    "layer_scalar": "layer_output_scale.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
}
_PER_LAYER = {
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}


def name_of(name: str, architecture: str) -> str:
    """llama.cpp's name of a tensor. All experts of a layer have one."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name) if architecture == "gemma4" else None
    if match and (own := _GEMMA4.get(match[2])):
        return f"blk.{match[1]}.{own}"
    name = re.sub(r"experts\.\d+\.", "experts.", name)
    stem, _, end = name.rpartition(".")
    if stem == "lm_head":
        return f"output.{end}"
    parts = stem.removeprefix("model.").removeprefix("backbone.").split(".", 2)
    if parts[0] != "layers":
        return (
            {"embed_tokens": "token_embd", "norm": "output_norm", "embedding_norm": "token_embd_norm"}
            | {"embeddings": "token_embd", "norm_f": "output_norm", "final_layernorm": "output_norm"}
            | _PER_LAYER
        )[parts[0]] + f".{end}"
    if (own := _WHOLE.get(f"{parts[2]}.{end}")) is not None:
        return f"blk.{parts[1]}.{own}"
    around = architecture in (
        *("gemma2", "gemma3", "gemma4", "glm4moe", "gpt-oss", "qwen35", "qwen35moe", "seed_oss"),
    )
    after = "post_attention_norm" if around else "ffn_norm"
    names = {**_LAYER, "post_attention_layernorm": after}
    return f"blk.{parts[1]}.{names[parts[2]]}.{end}"


def paired(weight: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys as llama.cpp's converter orders those of Llama."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def _tiled(name: str, stored: Tensor, config: Mapping[str, Any]) -> Tensor:
    """A tensor of a gated delta net as llama.cpp's converter orders its value heads: those of a key head
    apart.

    `stored`: numbers, or rows of blocks.
    """
    kind, keys = name.partition(".")[2].partition(".")[2].split(".")[0], config["linear_num_key_heads"]
    heads, size = config["linear_num_value_heads"], config["linear_value_head_dim"]
    order = torch.arange(heads).view(keys, -1).T.flatten()
    whole = (order[:, None] * size + torch.arange(size)).flatten()
    if kind in ("ssm_a", "ssm_dt", "ssm_alpha", "ssm_beta"):
        return stored[order]
    if kind == "attn_gate":
        return stored[whole]
    if kind in ("attn_qkv", "ssm_conv1d"):
        before = 2 * keys * config["linear_key_head_dim"]
        return torch.cat((stored[:before], stored[before:][whole]))
    if kind == "ssm_out":
        return stored.view(len(stored), heads, -1)[:, order].flatten(1)
    return stored


def _parts_of(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], architecture: str
) -> dict[str, Tensor]:
    """The tensors of a model, those that llama.cpp divides in their parts."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, _, end = name.rpartition(".")
        if architecture == "gpt-oss" and stem.endswith("experts"):
            kind = "bias" if end.endswith("bias") else "weight"
            for number, each in enumerate(tensor):
                rows = each if kind == "bias" else each.T
                parts = {"gate": rows[::2], "up": rows[1::2]} if "gate" in end else {"down": rows}
                found |= {f"{stem}.{number}.{one}_proj.{kind}": part for one, part in parts.items()}
        elif _has_split_latent(architecture, config) and stem.endswith("kv_b_proj"):
            heads = tensor.view(config["num_attention_heads"], -1, config["kv_lora_rank"])
            key = config["qk_nope_head_dim"]
            found[name.replace("kv_b_proj", "k_b")] = heads[:, :key].transpose(1, 2)
            found[name.replace("kv_b_proj", "v_b")] = heads[:, key:]
        elif architecture == "granitehybrid" and _GRANITE.search(name):
            found |= _parts_of_granite(name, tensor, config)
        else:
            found[name] = tensor
    return found


def _has_split_latent(architecture: str, config: Mapping[str, Any]) -> bool:
    """Whether the two parts of `kv_b_proj` are two tensors. Files of DeepSeek V2 Lite are older."""
    return architecture == "kimi-linear" or (architecture == "deepseek2" and bool(config["q_lora_rank"]))


_GRANITE = re.compile(r"(shared_mlp|block_sparse_moe)\.(input_linear|output_linear|router\.layer)\.")
"""Tensors of Granite's MLPs and experts, of which gate and up are one, and all experts."""


def _parts_of_granite(name: str, tensor: Tensor, config: Mapping[str, Any]) -> dict[str, Tensor]:
    """A tensor of `_GRANITE` by its parts, with the names of other families."""
    if "router" in name:
        return {name.replace("block_sparse_moe.router.layer", "mlp.gate"): tensor}
    layer = name.partition("shared_mlp")[0].partition("block_sparse_moe")[0]
    if "shared_mlp" in name:
        all_of = {"mlp.shared_expert" if config["num_local_experts"] else "mlp": tensor}
    else:
        all_of = {f"mlp.experts.{number}": each for number, each in enumerate(tensor)}
    ups = ("gate", "up") if "input_linear" in name else ("down",)
    return {
        f"{layer}{stem}.{one}_proj.weight": part
        for stem, each in all_of.items()
        for one, part in zip(ups, each.chunk(len(ups)), strict=True)
    }


def _whole_granite(parts: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """`_parts_of_granite`, back."""
    found = {name: tensor for name, tensor in parts.items() if ".mlp." not in name}

    def both(stem: str) -> tuple[Tensor, Tensor]:
        gate, up, down = (parts[f"{stem}.{one}_proj.weight"] for one in ("gate", "up", "down"))
        return torch.cat((gate, up)), down

    for layer in range(config["num_hidden_layers"]):
        own, experts = f"model.layers.{layer}", config["num_local_experts"]
        shared = both(f"{own}.mlp.shared_expert" if experts else f"{own}.mlp")
        for name, tensor in zip(("input", "output"), shared, strict=True):
            found[f"{own}.shared_mlp.{name}_linear.weight"] = tensor
        if experts:
            found[f"{own}.block_sparse_moe.router.layer.weight"] = parts[f"{own}.mlp.gate.weight"]
            each = [both(f"{own}.mlp.experts.{number}") for number in range(experts)]
            for name, tensors in zip(("input", "output"), zip(*each, strict=True), strict=True):
                found[f"{own}.block_sparse_moe.{name}_linear.weight"] = torch.stack(tensors)
    return found


def _whole(parts: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """`_parts_of`, back."""
    if "GraniteMoeHybridForCausalLM" in config["architectures"]:
        return _whole_granite(parts, config)
    found = dict(parts)
    for name in [name for name in parts if name.endswith("k_b.weight")]:
        key, value = found.pop(name), found.pop(name.replace("k_b", "v_b"))
        found[name.replace("k_b", "kv_b_proj")] = torch.cat((key.transpose(1, 2), value), 1).flatten(0, 1)
    if "GptOssForCausalLM" not in config["architectures"]:
        return found
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}.mlp.experts"
        for kind, end in (("weight", ""), ("bias", "_bias")):
            gate, up, down = (
                torch.stack(
                    [
                        found.pop(f"{stem}.{number}.{one}_proj.{kind}")
                        for number in range(config["num_local_experts"])
                    ]
                )
                for one in ("gate", "up", "down")
            )
            both = torch.stack((gate, up), 2).flatten(1, 2)
            turned = kind == "weight"
            found[f"{stem}.gate_up_proj{end}"] = both.transpose(1, 2) if turned else both
            found[f"{stem}.down_proj{end}"] = down.transpose(1, 2) if turned else down
    return found


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
    parts = _parts_of(load_file(source / "model.safetensors"), config, architecture)
    for seed, (name, tensor) in enumerate(sorted(parts.items())):
        own = name_of(name, architecture)
        kind = kind_of(own) if tensor.dim() > 1 and tensor.shape[0] > 1 else None
        if kind is None:
            plain[name] = tensor.float()
            one_more = architecture in ("gemma", "gemma2", "gemma3", "qwen35", "qwen35moe") and "norm" in own
            kept = tensor.float() + (one_more and "ssm_norm" not in own)
            kept = -kept.exp() if own.endswith("ssm_a") else kept
        else:
            columns = tensor.shape[-1]
            kept = random_blocks(kind, tensor.numel() // columns, columns, seed=100 * seed)
            plain[name] = meant(kind, kept).view(tensor.shape)
        if (
            architecture in ("llama", "granite", "mistral3", "smollm3")
            and "proj" in name
            and own.split(".")[-2] in ("attn_q", "attn_k")
        ):
            heads = "num_attention_heads" if "attn_q" in own else "num_key_value_heads"
            kept = paired(kept, config[heads])
        if architecture.startswith("qwen35"):
            kept = _tiled(own, kept, config)
        shape = tensor.squeeze(0).shape if "shexp" in own else tensor.shape
        shape = tensor.squeeze(1).shape if "conv" in own and tensor.dim() == 3 else shape
        if architecture == "kimi-linear" and "conv" in own:
            shape = 1, len(tensor), 1, tensor.shape[-1]
        elif own.endswith(("ssm_a", "ssm_d")) and ("mamba" in name or "mixer" in name):
            shape = len(tensor), 1
        elif own.endswith("ssm_norm.weight") and ("mamba" in name or "mixer" in name):
            groups = config.get("mamba_n_groups") or config["n_groups"]
            shape = groups, tensor.numel() // groups
        content = kept.contiguous().numpy().tobytes()
        if "_exps." in own and architecture != "gemma4":
            _, before, others = tensors.get(own, (0, (0,), b""))
            shape, content = (before[0] + 1, *shape), others + content
        tensors[own] = 0 if kind is None else KINDS[kind][0], tuple(shape), content
    plain = _whole(plain, config)
    if architecture == "gemma4":
        rotated = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
        pairs = values["attention.key_length"] // 2
        factors = [1.0 if pair < rotated * pairs else 1e30 for pair in range(pairs)]
        tensors["rope_freqs.weight"] = 0, (pairs,), struct.pack(f"<{pairs}f", *factors)
    every = {
        "general.architecture": architecture,
        "block_count": config.get("num_hidden_layers"),
        "context_length": config.get("max_position_embeddings"),
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("intermediate_size"),
        "attention.head_count": config.get("num_attention_heads"),
        "attention.head_count_kv": config.get("num_key_value_heads"),
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps") or config.get("norm_eps"),
        **values,
    }
    own_key = ("general.", "tokenizer.", "split.")
    named = {key if key.startswith(own_key) else f"{architecture}.{key}": each for key, each in every.items()}
    named = {key: each for key, each in named.items() if each is not None}
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
