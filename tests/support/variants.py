"""Which variants of kernels would have to be compiled: `TRITON_INTERPRET=0 python -m tests.support.variants`.

Triton compiles a kernel for each combination of its constants, and of what it tells numbers and addresses
apart by: a 1, a multiple of 16. Launches get as far as that choice, which needs no GPU, and nothing runs.

For each model, a worker rehearses as it does at its start, and takes steps of all kinds. Prints how many
variants the rehearsal has found, and each that only a step asked for: somebody would have waited for it.
"""

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
from numpy.random import Generator
from triton import JITFunction
from triton.backends.compiler import GPUTarget

from gpu_worker.kernels.kv_sizes import AUTO
from gpu_worker.kernels.triton.kernels import Int4Triton, QuantizedTriton, TritonKernels
from gpu_worker.memory.cache import make_caches
from gpu_worker.models.load import load_model
from gpu_worker.startup.warmup import rehearse, step_of
from gpu_worker.step.limits import BatchLimits
from gpu_worker.step.runner import Runner

CPU = torch.device("cpu")
BF16 = torch.bfloat16
HOPPER = GPUTarget("cuda", 90, 32)
PROCESSORS = 132
STEPS = 60
"""Of each model, drawn."""
STEP_TOKENS, SLOTS = 700, 300

MODELS: dict[str, tuple[str, type[TritonKernels], tuple[Any, ...], str, int]] = {
    "Llama": ("Llama", TritonKernels, (), AUTO, 9000),
    "Llama, int8": ("Llama", QuantizedTriton, (torch.int8,), "int8", 9000),
    "Gemma 2, fp8 pages": ("Gemma 2", TritonKernels, (), "fp8", 9000),
    "Qwen3, int4": ("Qwen3", Int4Triton, (), AUTO, 200),
    "Mixtral": ("Mixtral", TritonKernels, (), AUTO, 9000),
    "Mixtral, int4": ("Mixtral", Int4Triton, (), AUTO, 9000),
    "DeepSeek V2": ("DeepSeek V2", TritonKernels, (), "int8", 9000),
    "BLOOM": ("BLOOM", TritonKernels, (), AUTO, 9000),
}
"""Family, back end and what it is given beside its device, format of the pages, and longest sequence, which
may be shorter than a step."""


class Driver:
    """What Triton asks of a GPU's driver before it compiles."""

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def main() -> None:
    from tests.unit.gpu_worker.behaviour.test_families import ALIKE, random_model
    from tests.unit.gpu_worker.behaviour.test_families import MODELS as FAMILIES

    triton.runtime.driver.set_active(Driver())
    seen: set[tuple[str, str]] = set()
    new: list[str] = []

    def noted(kernel: Any, key: str, *_: Any) -> Any:
        name = kernel.fn.__name__
        if (name, key) not in seen:
            seen.add((name, key))
            new.append(f"{name} {key}")
        return SimpleNamespace(launch_metadata=nothing, run=nothing, function=0, packed_metadata=0)

    JITFunction._do_compile = noted
    for name, (family, back_end, given, pages, longest) in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            random_model(*(FAMILIES | ALIKE)[family]).to(BF16).save_pretrained(folder)
            runner = runner_of(Path(folder), kernels_of(back_end, given), pages, longest)
        rehearse(runner)
        print(f"{name}: {len(new)} rehearsed")
        new.clear()
        draw = np.random.default_rng(0)
        for _ in range(STEPS):
            runner.execute(step_of(runner.limits, *rows(draw, longest), copied=int(draw.integers(0, 3))))
            runner.reset()
        for variant in new:
            print(f"{name}, in a step: {variant}")
        new.clear()


def nothing(*_: Any) -> None:
    """Where a kernel would have been launched."""


def kernels_of(back_end: type[TritonKernels], given: tuple[Any, ...]) -> TritonKernels:
    """A back end for a GPU that is not here."""

    class Pretended(back_end):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__(CPU, *given)
            self._processors = PROCESSORS

    interpreted, triton.knobs.runtime.interpret = triton.knobs.runtime.interpret, True
    try:
        return Pretended()
    finally:
        triton.knobs.runtime.interpret = interpreted


def runner_of(directory: Path, kernels: TritonKernels, pages: str, longest: int) -> Runner:
    model = load_model(directory, CPU, kernels, BF16, None)
    config = model.config
    limits = BatchLimits(
        8, 16, SLOTS, longest, STEP_TOKENS, config.vocab_size, embedding_size=config.hidden_size
    )
    return Runner(model, make_caches(config, 8, 16, kernels.kv_format(pages, BF16), CPU), kernels, limits)


def rows(draw: Generator, longest: int) -> tuple[list[int], list[int]]:
    """Contexts and counts of a step's rows: decodes, drafts, chunks, and all of them together."""
    kinds = draw.choice([1, 2, 5, 9, 40, 300], size=draw.integers(1, 4), replace=False)
    counts: list[int] = []
    for _ in range(int(draw.choice([1, 2, 3, 17, 64, 290]))):
        count = min(longest, int(draw.integers(1, draw.choice(kinds) + 1)))
        if sum(counts) + count <= STEP_TOKENS:
            counts.append(count)
    farthest = int(draw.choice([0, 40, 600, 4000, longest]))
    return [min(longest, count + int(draw.integers(0, farthest + 1))) for count in counts], counts


if __name__ == "__main__":
    main()
