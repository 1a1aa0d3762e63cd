"""Random tiny models as directories, runners over them, and a driver that makes plans by hand."""

import os
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from gpu_worker.kernels.cpu import build, library
from gpu_worker.kernels.cpu.kernels import CpuKernels, OneDnnKernels
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.triton.kernels import TritonKernels
from gpu_worker.memory.cache import make_caches
from gpu_worker.models.adapters.adapters import AdapterFiles
from gpu_worker.models.load import Beside, load_model
from gpu_worker.models.ranks import ALONE, Ranks
from gpu_worker.settings import WorkerSettings
from gpu_worker.startup.backend import plain_kernels
from gpu_worker.startup.record_steps import record_steps
from gpu_worker.step.images import slot_images
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.runner import Runner
from proto.sampling import greedy
from proto.sampling_pb2 import Grammar, SamplingParams
from proto.worker_pb2 import NewGrammar, NewSlot, StepPlan, StepResult

torch.set_num_threads(1)

CPU = torch.device("cpu")

GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""What the Triton back end computes on: its interpreter's tensors are the CPU's."""

TRITON = ["triton"] if GPU.type == "cuda" or os.environ.get("TEST_INTERPRETED") else []
"""Triton's interpreter takes minutes for all that is here; kernels/triton/ has some of it."""
BACK_ENDS = ["torch", *TRITON, *dict.fromkeys((build.supported()[0], "portable"))]
"""Back ends for whole models. Of the instruction sets the best and plain C++: kernels/ tests each of them.
With oneDNN, which nothing takes unasked, some models are tested in bfloat16."""
NO_ADAPTERS: Mapping[str, Path] = {}
NO_DRAFTS: Mapping[int, list[int]] = {}


def pack(numbers: Iterable[int]) -> bytes:
    numbers = list(numbers)
    return struct.pack(f"<{len(numbers)}i", *numbers)


def unpack(packed: bytes, kind: str = "<i4") -> list[Any]:
    found: list[Any] = np.frombuffer(packed, kind).tolist()
    return found


def sampled(**changes: Any) -> SamplingParams:
    return greedy(**{"temperature": 1.0, **changes})


def new_slot(slot: int, tokens: list[int], block_ids: Iterable[int], **changes: Any) -> NewSlot:
    fields = {"prompt_length": len(tokens), "sampling": greedy(), **changes}
    return NewSlot(slot=slot, tokens=pack(tokens), block_ids=pack(block_ids), **fields)


def plan(step: int, rows: Iterable[tuple[int, int, int, int]] = (), **fields: Any) -> StepPlan:
    """Rows are (slot, start, count, samples). An array is given as its numbers, a table as its columns."""
    lists = {name: fields.pop(name, ()) for name in ("new_slots", "new_grammars")}
    message = StepPlan(step=step, **lists)
    if columns := list(zip(*rows, strict=True)):
        fields["rows"] = columns
    for name, value in fields.items():
        if name in ("freed_slots", "dropped_grammars", "draft_tokens"):
            setattr(message, name, pack(value))
            continue
        table = getattr(message, name)
        for column, numbers in zip(table.DESCRIPTOR.fields, value, strict=True):
            setattr(table, column.name, bytes(numbers) if column.name == "samples" else pack(numbers))
    return message


def make_limits(**changes: int) -> BatchLimits:
    values = {
        "num_blocks": 64,
        "block_size": 4,
        "max_slots": 8,
        "max_model_len": 64,
        "max_step_tokens": 64,
        "vocab_size": 97,
    }
    return BatchLimits(**{**values, **changes})


def make_runner(
    directory: Path,
    kernels: Kernels,
    dtype: torch.dtype = torch.float32,
    ranks: Ranks = ALONE,
    adapters: Mapping[str, Path] = NO_ADAPTERS,
    **changes: int,
) -> Runner:
    """With pages full of NaN: what is read without having been written shows."""
    device = GPU if isinstance(kernels, TritonKernels) else CPU
    files = AdapterFiles(adapters, plain_kernels(kernels)) if adapters else None
    model = load_model(
        directory, device, kernels, dtype, ranks=ranks, beside=Beside(files, image_tokens=1024)
    )
    config = model.config
    sizes = {
        "vocab_size": config.vocab_size,
        "embedding_size": config.hidden_size,
        "num_labels": config.num_labels,
        "recurrent": config.recurrent,
    }
    limits = replace(make_limits(**{**sizes, **changes}), adapters=tuple(adapters))
    caches = make_caches(
        model.config, limits.num_blocks, limits.block_size, kernels.kv_format(AUTO, dtype), device
    )
    for cache in caches:
        for tensor in cache.tensors():
            tensor.fill_(torch.nan)
    images = slot_images(model, limits, device, ranks)
    runner = Runner(model, caches, kernels, replace(limits, images=images is not None), images=images)
    if not isinstance(kernels, CpuKernels) or kernels.library._name == str(
        build.library(build.supported()[0])
    ):
        record_steps(runner, kernels)  # with other libraries steps are computed kernel by kernel
    return runner


@dataclass
class Running:
    """A sequence as the driver sees it."""

    slot: int
    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class Driver:
    """A scheduler of the simplest kind: hands out blocks in a random order, row by row as told."""

    def __init__(self, runner: Runner, seed: int = 0) -> None:
        self.runner = runner
        self.size = runner.limits.block_size
        self.free = np.random.default_rng(seed).permutation(runner.limits.num_blocks).tolist()
        self.steps = 0
        self.new: list[NewSlot] = []
        self.grammars: list[NewGrammar] = []
        self.freed: list[int] = []
        self.cut: dict[int, int] = {}

    def admit(self, slot: int, prompt: list[int], **changes: Any) -> Running:
        """Put a sequence into a slot, without blocks."""
        self.new.append(new_slot(slot, prompt, [], **changes))
        return Running(slot, list(prompt))

    def bring(self, grammar: Grammar, number: int = 1) -> None:
        """Let sequences name a grammar by its number."""
        self.grammars.append(NewGrammar(number=number, grammar=grammar))

    def release(self, sequence: Running) -> None:
        self.free.extend(sequence.blocks)
        self.cut.pop(sequence.slot, None)
        self.freed.append(sequence.slot)

    def step(self, *rows: tuple[Running, int], drafts: Mapping[int, list[int]] = NO_DRAFTS) -> StepResult:
        """Compute a number of tokens of each sequence. A sequence at its end samples.

        `drafts`: by slot, of sequences that come to their ends.
        """
        planned, gains = [], []
        for sequence, count in rows:
            end, guessed = sequence.computed + count, len(drafts.get(sequence.slot, ()))
            while len(sequence.blocks) * self.size < end + guessed:
                sequence.blocks.append(self.free.pop())
                gains.append((sequence.slot, sequence.blocks[-1]))
            samples = 1 + guessed if end == len(sequence.tokens) else 0
            planned.append((sequence.slot, sequence.computed, count + guessed, samples))
            sequence.computed = end
        self.steps += 1
        message = plan(
            self.steps,
            planned,
            new_grammars=self.grammars,
            new_slots=self.new,
            freed_slots=self.freed,
            table_appends=([slot for slot, _ in gains], [block for _, block in gains]),
            draft_tokens=[token for sequence, _ in rows for token in drafts.get(sequence.slot, ())],
            table_cuts=(list(self.cut), list(self.cut.values())),
        )
        self.grammars, self.new, self.freed, self.cut = [], [], [], {}
        result = self.runner.execute(message)
        assert not result.errors, result.errors
        tokens = iter(unpack(result.tokens))
        for (sequence, _), (*_, samples) in zip(rows, planned, strict=True):
            run = [token for token in islice(tokens, samples) if token >= 0]
            sequence.tokens += run
            sequence.computed += max(0, len(run) - 1)
            self._cut_back(sequence)
        return result

    def _cut_back(self, sequence: Running) -> None:
        """Take back the blocks past the next position."""
        needed = -(-max(len(sequence.tokens), sequence.computed) // self.size)
        if len(sequence.blocks) > needed:
            self.free[:0] = sequence.blocks[needed:]
            del sequence.blocks[needed:]
            self.cut[sequence.slot] = needed

    def generate(self, sequence: Running, count: int, chunk: int = 1 << 30) -> list[int]:
        """That many tokens of one sequence alone, its prompt in chunks."""
        prompt = len(sequence.tokens)
        while len(sequence.tokens) < prompt + count:
            self.step((sequence, min(chunk, len(sequence.tokens) - sequence.computed)))
        return sequence.tokens[prompt:]

    def mixed_steps(
        self, sequences: list[Running], length: int, after: Callable[[], None] = lambda: None
    ) -> None:
        """Chunks of different sizes beside decodes, until all sequences are that long; `after` each step."""
        step = 0
        while min(len(sequence.tokens) for sequence in sequences) < length:
            rows = []
            for slot, sequence in enumerate(sequences):
                if step >= 2 * slot and len(sequence.tokens) < length:
                    missing = len(sequence.tokens) - sequence.computed
                    rows.append((sequence, min(missing, 1 + (step + slot) % 5)))
            self.step(*rows)
            after()
            step += 1


def llama(**changes: Any) -> LlamaForCausalLM:
    """A random model, small, with weights large enough that its tokens vary."""
    torch.manual_seed(changes.pop("seed", 0))
    values = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**values, **changes})).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # transformers begins with zeros, which would show nothing
            torch.nn.init.normal_(parameter, std=0.2)
    return model


def expected_tokens(model: Any, prompt: list[int], count: int) -> list[int]:
    """transformers' greedy continuation."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
        )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


def back_end(name: str) -> Kernels:
    """One of `BACK_ENDS`, or onednn."""
    if name == "torch":
        return ReferenceKernels()
    if name == "triton":
        return TritonKernels(GPU)
    if name == "onednn":
        return OneDnnKernels(library.load(build.supported()[0], 1))
    return CpuKernels(library.load(name, 1))


@pytest.fixture(scope="session", params=BACK_ENDS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Each back end."""
    return back_end(request.param)


@pytest.fixture(scope="session")
def make(kernels: Kernels) -> SimpleNamespace:
    """The makers above, over each back end."""
    return makers(kernels)


def makers(kernels: Kernels) -> SimpleNamespace:
    return SimpleNamespace(
        Driver=Driver,
        runner=partial(make_runner, kernels=kernels),
        limits=make_limits,
        llama=llama,
        expected=expected_tokens,
        plan=plan,
        slot=new_slot,
        greedy=greedy,
        sampled=sampled,
        pack=pack,
        unpack=unpack,
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A random model with grouped queries: as transformers' model and as a directory."""
    model = llama()
    directory = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(directory)
    return SimpleNamespace(model=model, directory=directory)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., SimpleNamespace]:
    """Makes a random model of a changed configuration and saves it."""

    def save(shard_size: str = "1GB", **changes: Any) -> SimpleNamespace:
        model = llama(**changes)
        model.save_pretrained(tmp_path, max_shard_size=shard_size)
        return SimpleNamespace(model=model, directory=tmp_path)

    return save


@pytest.fixture
def settings(tiny):
    def make_settings(**changes):
        values = {
            "model": tiny.directory,
            "model_name": "tiny",
            "device": "cpu",
            "threads": 1,
            "max_slots": 4,
        }
        return WorkerSettings(**{**values, **changes})

    return make_settings
