"""The Llama family: Touvron et al. 2023, Grattafiori et al. 2024; Mistral (Jiang et al. 2023) is Llama with
sliding windows.

Query, key and value projections are one matrix, and so are gate and up: fewer, larger products.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels, LayerCache, Linear, Rotary, Sight, StepAttention
from gpu_worker.models.config import ModelConfig
from gpu_worker.models.loader import Weights
from gpu_worker.models.rope import rotary_tables


class Layer:
    """One decoder layer: attention with grouped queries over the paged cache, and a gated feed-forward."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels, sight: Sight) -> None:
        hidden, inner, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        q, k, v, o = (f"self_attn.{name}_proj" for name in "qkvo")
        gate, up, down = (f"mlp.{name}_proj" for name in ("gate", "up", "down"))
        attention, mlp = config.attention_bias, config.mlp_bias

        self._sight = sight
        self._attention_norm = kernels.norm(weights.read("input_layernorm.weight", hidden), eps)
        self._qkv = kernels.linear(*weights.merged({q: query, k: key, v: key}, hidden, attention))
        self._out = kernels.linear(*weights.merged({o: hidden}, query, attention))
        self._mlp_norm = kernels.norm(weights.read("post_attention_layernorm.weight", hidden), eps)
        self._gated = kernels.gated(*weights.merged({gate: inner, up: inner}, hidden, mlp))
        self._down = kernels.linear(*weights.merged({down: hidden}, inner, mlp))

    def add_to(self, hidden: Tensor, rotary: Rotary, attention: StepAttention, cache: LayerCache) -> None:
        """Add what the layer has to say to the residual stream, hidden [tokens, hidden_size], in place."""
        query = attention.rotate_and_write(self._qkv(self._attention_norm(hidden)), rotary, cache)
        self._out.add_to(attention.attend(query, cache, self._sight), hidden)
        self._down.add_to(self._gated(self._mlp_norm(hidden)), hidden)


class Llama:
    """A decoder for causal language modelling. See `models.registry.CausalLM`."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels, positions: int) -> None:
        """`positions`: how many the rotary tables cover. Raises `ModelError`."""
        self.config = config
        self.dtype = weights.dtype
        self._embed, self._head = _ends(config, weights, kernels)
        self._norm = kernels.norm(weights.read("model.norm.weight", config.hidden_size), config.rms_norm_eps)
        self._layers = [
            Layer(config, weights.under(f"model.layers.{number}."), kernels, Sight(window))
            for number, window in enumerate(config.windows)
        ]
        self._rotary = rotary_tables(config.rope, config.head_dim, positions, weights.device)

    def __call__(self, tokens: Tensor, step: StepAttention, caches: Sequence[LayerCache]) -> Tensor:
        hidden = self._embed(tokens)
        for layer, cache in zip(self._layers, caches, strict=True):
            layer.add_to(hidden, self._rotary, step, cache)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head(self._norm(hidden))


def _ends(
    config: ModelConfig, weights: Weights, kernels: Kernels
) -> tuple[Callable[[Tensor], Tensor], Linear]:
    """What looks up embeddings, and the head; of one matrix if they are tied."""
    embedding, shape = "model.embed_tokens.weight", (config.vocab_size, config.hidden_size)
    if config.tie_word_embeddings:
        head = kernels.linear(weights.read(embedding, *shape), dtype=torch.float32, keeps_rows=True)
        return head.rows, head
    table = weights.read(embedding, *shape)
    return table.__getitem__, kernels.linear(weights.read("lm_head.weight", *shape), dtype=torch.float32)
