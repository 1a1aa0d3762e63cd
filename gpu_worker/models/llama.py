"""The Llama family: Touvron et al. 2023, Grattafiori et al. 2024.

Query, key and value projections are one matrix, and so are gate and up: fewer, larger products.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from gpu_worker.kernels.interface import LayerCache, StepAttention
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.layers import RMSNorm, Rotary, rotate
from gpu_worker.models.loader import Source


class Attention(nn.Module):
    """Self-attention with grouped queries over the paged cache."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        rows = (self.heads + 2 * self.kv_heads) * self.head_dim
        self.qkv = nn.Linear(config.hidden_size, rows, bias=config.attention_bias)
        self.out = nn.Linear(self.heads * self.head_dim, config.hidden_size, bias=config.attention_bias)

    def forward(
        self, hidden: Tensor, angles: tuple[Tensor, Tensor], attention: StepAttention, cache: LayerCache
    ) -> Tensor:
        heads = self.qkv(hidden).view(-1, self.heads + 2 * self.kv_heads, self.head_dim)
        query, key, value = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        attention.write_kv(rotate(key, *angles), value, cache)
        mixed = attention.attend(rotate(query, *angles), cache)
        projected: Tensor = self.out(mixed.flatten(1))
        return projected


class MLP(nn.Module):
    """Gated feed-forward layer (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        projected: Tensor = self.down(silu(gate) * up)
        return projected


class Layer(nn.Module):
    """One decoder layer: attention and feed-forward, each normalized before and added after."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, hidden: Tensor, angles: tuple[Tensor, Tensor], attention: StepAttention, cache: LayerCache
    ) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), angles, attention, cache)
        mixed: Tensor = hidden + self.mlp(self.mlp_norm(hidden))
        return mixed


class Llama(nn.Module):
    """A decoder for causal language modelling. See `models.registry.CausalLM`."""

    def __init__(self, config: ModelConfig, positions: int) -> None:
        """`positions`: how many the rotary tables cover."""
        super().__init__()
        self.config = config
        self.dtype = torch.get_default_dtype()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.head.weight = self.embedding.weight
        with torch.device("cpu"):  # the parameters may be built without memory; these tables need theirs
            self._rotary = Rotary(config.rope, config.head_dim, positions, self.dtype)

    def forward(
        self, tokens: Tensor, positions: Tensor, attention: StepAttention, caches: Sequence[LayerCache]
    ) -> Tensor:
        hidden: Tensor = self.embedding(tokens)
        angles = self._rotary.angles(positions)
        for layer, cache in zip(self.layers, caches, strict=True):
            hidden = layer(hidden, angles, attention, cache)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(hidden))
        return logits

    def place(self, device: torch.device) -> None:
        """Give the parameters uninitialized memory on the device and move the tables there."""
        self.to_empty(device=device)
        self._rotary.to(device)
        if self.config.tie_word_embeddings:  # to_empty has parted them
            self.head.weight = self.embedding.weight

    def sources(self) -> Iterator[tuple[Tensor, list[Source]]]:
        """Each parameter, and the checkpoint's tensors that make up its rows."""
        config, row = self.config, self.config.head_dim
        yield self.embedding.weight, [Source("model.embed_tokens.weight", config.vocab_size)]
        if not config.tie_word_embeddings:
            yield self.head.weight, [Source("lm_head.weight", config.vocab_size)]
        yield self.norm.weight, [Source("model.norm.weight", config.hidden_size)]
        linears = {
            "attention.qkv": (
                ("self_attn.q_proj", config.num_heads * row),
                ("self_attn.k_proj", config.num_kv_heads * row),
                ("self_attn.v_proj", config.num_kv_heads * row),
            ),
            "attention.out": (("self_attn.o_proj", config.hidden_size),),
            "mlp.gate_up": (
                ("mlp.gate_proj", config.intermediate_size),
                ("mlp.up_proj", config.intermediate_size),
            ),
            "mlp.down": (("mlp.down_proj", config.hidden_size),),
            "attention_norm": (("input_layernorm", config.hidden_size),),
            "mlp_norm": (("post_attention_layernorm", config.hidden_size),),
        }
        for number, layer in enumerate(self.layers):
            for name, parts in linears.items():
                for kind, parameter in layer.get_submodule(name).named_parameters():
                    yield (
                        parameter,
                        [Source(f"model.layers.{number}.{part}.{kind}", rows) for part, rows in parts],
                    )
