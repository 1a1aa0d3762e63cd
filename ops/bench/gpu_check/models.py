"""Models of a chosen shape with random weights, and their runners.

Random weights are not written to a disk. Each tensor is made when the model is loaded.
"""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.products import GROUP
from gpu_worker.kernels.triton.graphs.graphs import StepGraphs, recorder
from gpu_worker.kernels.triton.graphs.layouts import Layout
from gpu_worker.memory.cache import make_caches
from gpu_worker.models import load
from gpu_worker.models.causal_lm import CausalLM
from gpu_worker.models.checkpoint import Checkpoint
from gpu_worker.models.load import load_model
from gpu_worker.step.forward import Forward
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.runner import Runner
from ops.bench.gpu_check.bench import Bench

BLOCK_SIZE = 16

Shape = dict[str, int]
"""Sizes in config.json."""

EIGHT_B: Shape = {
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14_336,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
}
TINY: Shape = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 128,
}
GPT_OSS_20B: Shape = {
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "vocab_size": 201_088,
    "max_position_embeddings": 8192,
}
TINY_EXPERTS: Shape = TINY | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16}


class RandomCheckpoint(Checkpoint):
    """A checkpoint whose tensors are made when they are taken: random weights, and norms of 1. Experts are of
    fp4."""

    def __init__(self, shape: Shape, bench: Bench) -> None:
        attention = [f"self_attn.{name}_proj" for name in "qkvo"]
        norms = [f"{name}.weight" for name in ("input_layernorm", "post_attention_layernorm")]
        if experts := shape.get("num_local_experts", 0):
            biased = [*attention, "mlp.router"]
            each = [f"mlp.experts.{number}" for number in range(experts)]
            biased += [f"{name}.{part}" for name in each for part in ("gate_up_proj", "down_proj")]
            parts = [f"{name}.{end}" for name in biased for end in ("weight", "bias")] + ["self_attn.sinks"]
        else:
            mlp = [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
            parts = [f"{name}.weight" for name in (*attention, *mlp)]
        layers = range(shape["num_hidden_layers"])
        names = [f"model.layers.{layer}.{part}" for layer in layers for part in (*parts, *norms)]
        names += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
        super().__init__({name: (None, name) for name in names})
        self._bench = bench

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Every shape is right: the tensor is made in it."""

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._read.add(name)
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=self._bench.device)
        made = torch.empty(shape, dtype=torch.bfloat16, device=self._bench.device)
        return made.normal_(0, 0.02, generator=self._bench.generator)

    def fp4_scales(self, name: str, rows: Sequence[slice], columns: slice) -> Tensor | None:
        if ".experts." not in name:
            return None
        out, groups = sum(len(range(each.stop)[each]) for each in rows), -(-columns.stop // GROUP)
        return torch.full((out, groups), 2.0**-7, dtype=torch.float16)


def random_model(shape: Shape, kernels: Kernels, dtype: torch.dtype, bench: Bench) -> CausalLM:
    """A Llama of this shape with random weights, or, with experts, a gpt-oss."""
    config: dict[str, Any] = {"rms_norm_eps": 1e-5, **shape}
    if "num_local_experts" in shape:
        config |= {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}
        config |= {"quantization_config": {"quant_method": "mxfp4"}}
    else:
        config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}

    @contextmanager
    def made(*_: object) -> Iterator[Checkpoint]:
        yield RandomCheckpoint(shape, bench)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(load, "open_checkpoint", made):
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
