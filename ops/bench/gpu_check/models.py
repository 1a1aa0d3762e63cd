"""Models of a chosen shape with random weights, and their runners.

Random weights are not written to a disk. Each tensor is made when the model is loaded.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.triton.graphs.graphs import StepGraphs, recorder
from gpu_worker.kernels.triton.graphs.layouts import Layout
from gpu_worker.memory.cache import make_caches
from gpu_worker.models import registry
from gpu_worker.models.checkpoint import Checkpoint
from gpu_worker.models.registry import CausalLM, load_model
from gpu_worker.step.batch import BatchLimits
from gpu_worker.step.forward import Forward
from gpu_worker.step.runner import Runner
from ops.bench.gpu_check.bench import Bench

BLOCK_SIZE = 16

EIGHT_B = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
}
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 128,
}


class RandomCheckpoint(Checkpoint):
    """A checkpoint whose tensors are made when they are taken: random weights, and norms of 1."""

    def __init__(self, layers: int, bench: Bench) -> None:
        parts = [f"self_attn.{name}_proj" for name in "qkvo"]
        parts += [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
        parts += ["input_layernorm", "post_attention_layernorm"]
        names = [f"model.layers.{layer}.{part}.weight" for layer in range(layers) for part in parts]
        names += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
        super().__init__({name: (None, name) for name in names})
        self._bench = bench

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Every shape is right: the tensor is made in it."""

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._read.add(name)
        if len(shape) == 1:
            return torch.ones(shape, device=self._bench.device)
        made = torch.empty(shape, dtype=torch.bfloat16, device=self._bench.device)
        return made.normal_(0, 0.02, generator=self._bench.generator)


def llama(shape: dict[str, int], kernels: Kernels, dtype: torch.dtype, bench: Bench) -> CausalLM:
    """A Llama of this shape with random weights."""
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, **shape}

    @contextmanager
    def made(*_: object) -> Iterator[Checkpoint]:
        yield RandomCheckpoint(shape["num_hidden_layers"], bench)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(registry, "open_checkpoint", made):
        Path(folder, "config.json").write_text(json.dumps(config))
        return load_model(Path(folder), bench.device, kernels, dtype)


def runner_of(
    model: CausalLM,
    kernels: Kernels,
    slots: int,
    longest: int,
    device: torch.device,
    kv: str = AUTO,
) -> Runner:
    """A runner whose every slot can hold a sequence of the longest length. `kv`: format of its pages."""
    blocks = slots * -(-longest // BLOCK_SIZE)
    limits = BatchLimits(blocks, BLOCK_SIZE, slots, longest, max(512, slots), model.config.vocab_size)
    with torch.inference_mode():
        caches = make_caches(model.config, blocks, BLOCK_SIZE, kernels.kv_format(kv, model.dtype), device)
        for cache in caches:
            for tensor in cache.tensors():
                tensor.zero_()
    return Runner(model, caches, kernels, limits)


def replay(runner: Runner, layouts: Sequence[Layout], bench: Bench) -> StepGraphs:
    """Let the runner replay steps of these layouts. In a dry run they are computed again instead."""
    record, forward = (lambda compute: compute) if bench.dry else recorder(), runner.forward
    assert isinstance(forward, Forward)
    graphs = StepGraphs(forward.compute, runner.batch.tables, record)
    graphs.prepare(layouts)
    forward.recorded = graphs
    return graphs
