"""First weights with which attention can already copy.

Most of what there is to learn about a story is which name comes next, and that is copying. From random
weights a model finds out how to copy only after far more text than two CPU cores can read in an hour
(Olsson et al. 2022, "In-context Learning and Induction Heads", show how late and how suddenly). So two
circuits are written into the first layers, are left alone until the rest has learned to use them
(`hold`), and then train with everything else:

    layer 0, head 0          look at the token before              residual += B' P x[i-1]
    layer 1, head 0          look where the token before was
                             the token at hand (induction)         residual += C' C x[j], x[j-1] ~ x[i]
    layers 0, 1, last group  look at words that tend to come       residual += D' D x[j], x[j] bursty
                             again, wherever they are

P, B, C, D are random projections on subspaces as wide as a head. The embeddings carry two features for
these heads to read: dimension 0 is a constant, dimension 1 says how bursty the token is (Church 2000,
"Empirical estimates of adaptation": names and things are, the words of the grammar are not). All other
heads start with outputs that are their values transposed, and queries like their keys (Trockman and
Kolter 2023, "Mimetic initialization of self-attention layers").
"""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

_SCALE = 0.06
"""Of the embeddings. What the layers add is kept as large, or it would drown them."""
_CONSTANT = 0.5
_BURSTY = 0.3
_GAIN = 0.14
_SHARPNESS = 4.0
_SEEK = 2.2
_FAST = 4
"""The rotary pairs that turn fastest tell a token from its neighbours."""


def _basis(rows: int, hidden: int) -> Tensor:
    """Orthonormal rows that leave dimensions 0 and 1 alone."""
    drawn = torch.linalg.qr(torch.randn(hidden - 2, min(rows, hidden - 2)))[0].T
    return torch.cat([torch.zeros(len(drawn), 2), drawn], 1)


def _mimetic(config: Any, model: LlamaForCausalLM) -> None:
    head, hidden, kv_heads = config.head_dim, config.hidden_size, config.num_key_value_heads
    groups = config.num_attention_heads // kv_heads
    for layer in model.model.layers:
        attention = layer.self_attn
        value = _basis(head * kv_heads, hidden)
        attention.v_proj.weight.copy_(value)
        output = value.view(-1, head, hidden).repeat_interleave(groups, 0).flatten(0, 1)
        attention.o_proj.weight.copy_(output.T * _SCALE / 2)
        query = torch.randn(attention.q_proj.weight.shape) * 0.04
        attention.q_proj.weight.copy_(query)
        attention.k_proj.weight.copy_(query.view(-1, groups, head, hidden).mean(1).flatten(0, 1))
        layer.mlp.down_proj.weight.mul_(0.25)


def _look_back(config: Any, attention: torch.nn.Module, read: Tensor, write: Tensor) -> None:
    """Head 0 looks one token back: rotated by their positions, query and key agree at that distance."""
    head, half = config.head_dim, config.head_dim // 2
    q, k, v, o = (getattr(attention, name).weight for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    norm = math.sqrt(_CONSTANT**2 + config.hidden_size * _SCALE**2)
    constant = math.sqrt(config.hidden_size) * _CONSTANT / norm  # dimension 0 behind the RMS norm
    size = 7.4 / constant
    angles = config.rope_parameters["rope_theta"] ** (-torch.arange(_FAST) / half)
    q[:head], k[:head] = 0, 0
    k[:_FAST, 0] = size
    q[:_FAST, 0] = size * angles.cos()
    q[half : half + _FAST, 0] = -size * angles.sin()
    v[:head] = read
    o[:, :head] = write.T * _GAIN


def _look_up(config: Any, attention: torch.nn.Module, now: Tensor, before: Tensor) -> None:
    """Head 0 looks where the token before was the token at hand, and hands on what it finds there."""
    head, half = config.head_dim, config.head_dim // 2
    q, k, v, o = (getattr(attention, name).weight for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    angles = config.rope_parameters["rope_theta"] ** (-torch.arange(half) / half)
    still = (angles < 1 / 300).nonzero().flatten()  # pairs that hardly turn within a few hundred tokens
    rows = torch.cat([still, still + half])
    mixed = torch.linalg.qr(torch.randn(head, len(rows)))[0].T * math.sqrt(_SHARPNESS)
    q[:head], k[:head] = 0, 0
    q[rows], k[rows] = mixed @ now, mixed @ before
    copied = _basis(head, config.hidden_size)
    v[:head] = copied
    o[:, :head] = copied.T * _GAIN * 1.5


def _look_for_names(config: Any, attention: torch.nn.Module, copied: Tensor) -> None:
    """The first head of the last group looks at bursty tokens and hands on what they are."""
    keys, queries = _last_group(config)
    q, k, v, o = (getattr(attention, name).weight for name in ("q_proj", "k_proj", "v_proj", "o_proj"))
    q[queries], k[keys] = 0, 0
    slowest = config.head_dim // 2 - 1  # of the rotary pairs: its product hardly depends on the distance
    q[queries.start + slowest, 0] = _SEEK
    k[keys.start + slowest, 1] = _SEEK
    v[keys] = copied
    o[:, queries] = copied.T * _GAIN * 3


def _last_group(config: Any) -> tuple[slice, slice]:
    """(rows of its key and value, rows of its first query)."""
    head, groups = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    last = config.num_key_value_heads - 1
    return slice(last * head, (last + 1) * head), slice(last * groups * head, (last * groups + 1) * head)


def burstiness(documents: list[list[int]], vocab_size: int) -> Tensor:
    """How much likelier a second occurrence in a document is than a first: (vocab_size,), from 0 to 1."""
    once, twice = torch.zeros(vocab_size), torch.zeros(vocab_size)
    for ids in documents:
        counts = torch.bincount(torch.tensor(ids), minlength=vocab_size)
        once += counts > 0
        twice += counts > 1
    again = twice / (once + 4)
    return ((again + 1e-3) / (once / len(documents) + 1e-3)).log().div(4).clamp(0, 1)


@torch.no_grad()
def initialise(model: LlamaForCausalLM, bursty: Tensor) -> None:
    """Overwrite fresh weights in place, from torch's global generator. `bursty`: see `burstiness`."""
    config: Any = model.config
    embeddings = model.model.embed_tokens.weight
    embeddings.normal_(0, _SCALE)
    embeddings[:, 0] = _CONSTANT
    embeddings[:, 1] = bursty * _BURSTY
    _mimetic(config, model)
    now, before = _basis(2 * config.head_dim, config.hidden_size).chunk(2)
    layers = model.model.layers
    _look_back(config, layers[0].self_attn, now, before)
    _look_up(config, layers[1].self_attn, now, before)
    for layer, copied in zip(layers, _basis(2 * config.head_dim, config.hidden_size).chunk(2), strict=False):
        _look_for_names(config, layer.self_attn, copied)
    for layer in layers:
        layer.self_attn.o_proj.weight[:2] = 0
        layer.mlp.down_proj.weight[:2] = 0


def hold(model: LlamaForCausalLM) -> None:
    """Drop the gradients of what is written here: random heads would first pull it towards word pairs."""
    config: Any = model.config
    first = slice(0, config.head_dim)
    for layer in model.model.layers[:2]:
        attention = layer.self_attn
        for keys, queries in ((first, first), _last_group(config)):
            attention.k_proj.weight.grad[keys] = 0
            attention.v_proj.weight.grad[keys] = 0
            attention.q_proj.weight.grad[queries] = 0
            attention.o_proj.weight.grad[:, queries] = 0
        attention.o_proj.weight.grad[:2] = 0
        layer.mlp.down_proj.weight.grad[:2] = 0
        layer.input_layernorm.weight.grad[:2] = 0
    model.model.embed_tokens.weight.grad[:, :2] = 0
