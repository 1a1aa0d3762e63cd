"""Steps that are repeated from a record have the bits of steps that are computed kernel by kernel."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.attention import StepMetadata
from gpu_worker.kernels.cpu import build, library, recorded_steps
from gpu_worker.kernels.cpu.kernels import CpuKernels, Int4Kernels, QuantizedKernels
from gpu_worker.kernels.cpu.recorded_steps import RecordedSteps
from gpu_worker.kernels.rows import Rows
from gpu_worker.startup.record_steps import record_steps
from gpu_worker.step.runner import Runner
from tests.support.native import TESTED
from tests.unit.gpu_worker.conftest import makers

KINDS = [CpuKernels, QuantizedKernels, Int4Kernels]
PROMPTS = [[5, 17, 3, 88, 41, 9], [7] * 9, [1, 2, 3]]


@pytest.fixture(autouse=True)
def _the_first_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_steps, "RECORDED", 1)


def kernels_of(kind: Callable[..., CpuKernels], instruction_set: str = build.supported()[0]) -> CpuKernels:
    return kind(library.load(instruction_set, 1))


def answers(make: SimpleNamespace, runner: Runner) -> list[bytes]:
    """Tokens of each step: sequences begin one after the other, and go on beside each other."""
    results: list[bytes] = []
    lengths: list[int] = []
    for step in range(1, 13):
        news = []
        if step % 3 == 1 and len(lengths) < len(PROMPTS):
            slot = len(lengths)
            news = [make.slot(slot, PROMPTS[slot], [8 * slot + block for block in range(8)])]
        rows = [(slot, length, 1, 1) for slot, length in enumerate(lengths)]
        lengths = [length + 1 for length in lengths]
        if news:
            rows.append((len(lengths), 0, len(PROMPTS[len(lengths)]), 1))
            lengths.append(len(PROMPTS[len(lengths)]))
        results.append(runner.execute(make.plan(step, rows, new_slots=news)).tokens)
    return results


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("instruction_set", TESTED)
def test_bits_are_the_same(
    tiny: SimpleNamespace, instruction_set: str, kind: Callable[..., CpuKernels], dtype: torch.dtype
) -> None:
    kernels = kernels_of(kind, instruction_set)
    make = makers(kernels)
    plain, repeating = (make.runner(tiny.directory, dtype=dtype) for _ in range(2))
    plain.forward.recorded = None
    record_steps(repeating, kernels)
    seen: list[list[Tensor]] = [[], []]
    for runner, hidden in zip((plain, repeating), seen, strict=True):
        logits = runner.model.logits
        runner.model.logits = lambda states, logits=logits, hidden=hidden: (
            hidden.append(states.clone()) or logits(states)
        )
    assert answers(make, plain) == answers(make, repeating)
    assert all(map(torch.equal, *seen))
    assert isinstance(repeating.forward.recorded, RecordedSteps)
    assert set(repeating.forward.recorded._tapes) == {(1, 6), (1, 1), (2, 10), (2, 2), (3, 5), (3, 3)}


class Layered:
    """Three layers that add a normalized residual to it; the last one may do more."""

    def __init__(self, more: Callable[[Tensor], Any] | None = None) -> None:
        self._norm = kernels_of(CpuKernels).norm(torch.full((16,), 0.5), 1e-5)
        self._product = kernels_of(CpuKernels).linear(torch.eye(16))
        self._more = more
        self.computed = 0

    def embed(self, tokens: Tensor, _: Tensor) -> Tensor:
        return tokens[:, None] * torch.linspace(-1, 2, 16)

    def layers(self, *_: Any) -> Iterator[Callable[[Tensor], None]]:
        self.computed += 1
        for number in range(3):
            yield lambda residual, number=number: self._add(residual, number)

    def _add(self, residual: Tensor, number: int) -> None:
        self._product.add_to(self._norm(residual), residual)
        if number == 2 and self._more is not None:
            self._more(residual)

    def expected(self, tokens: Tensor) -> Tensor:
        residual = self.embed(tokens, tokens)
        for add in self.layers():
            add(residual)
        return residual


def rows(*counts: int) -> Rows:
    numbers = torch.tensor(counts, dtype=torch.int32).numpy()
    return Rows(*[numbers] * 5)  # type: ignore[arg-type]


def recorded(model: Any) -> RecordedSteps:
    def metadata(step: Rows) -> tuple[StepMetadata, Tensor, Tensor]:
        count, tokens = len(step.counts), int(step.counts.sum())
        ints, longs = torch.zeros(count + 1, dtype=torch.int32), torch.arange(tokens)
        tables = torch.zeros(count, 2, dtype=torch.int32)
        given = StepMetadata(count, (1,) * count, (1,) * count, ints, ints[1:], tables, longs, longs)
        return given, longs + 1, torch.arange(count)

    kernels = kernels_of(CpuKernels)
    return RecordedSteps(kernels.library, model, kernels.begin, [], metadata, 4)


def compute(steps: RecordedSteps, step: Rows) -> Tensor:
    found = steps.find(step)
    assert found is not None
    return found(step)[0].clone()


def test_a_layer_is_computed_once_for_each_size() -> None:
    model = Layered()
    steps = recorded(model)
    for counts in ((1,), (1, 1), (1,), (40, 24), (1, 1), (2,), (1,)):
        tokens = torch.arange(sum(counts)) + 1
        computed = compute(steps, rows(*counts))
        before = model.computed
        assert computed.equal(model.expected(tokens))
        model.computed = before
    assert model.computed == 4, "sizes: 1 of 1, 2 of 2, 2 of 64, 1 of 2"


@pytest.mark.parametrize(
    "more",
    [
        lambda residual: residual.mul_(2),
        lambda residual: residual.add_(torch.ones(16)),
        lambda residual: residual.copy_(residual.flip(0)),
        lambda residual: residual[:, :4].contiguous(),
        lambda residual: residual.sum().item(),
    ],
)
def test_a_model_that_computes_with_pytorch_is_not_repeated(more: Callable[[Tensor], Any]) -> None:
    model = Layered(more)
    steps = recorded(model)
    assert compute(steps, rows(1, 1)).equal(model.expected(torch.tensor([1, 2])))
    assert steps.find(rows(1, 1)) is None
    assert steps.find(rows(1)) is None


def test_views_are_repeated() -> None:
    steps = recorded(Layered(lambda residual: residual.view(-1, 4).split([1, 3], dim=1)))
    compute(steps, rows(1, 1))
    assert steps.find(rows(1, 1)) is not None


def test_what_is_not_repeated() -> None:
    steps = recorded(Layered())
    assert steps.find(rows(recorded_steps.MOST_TOKENS)) is not None
    assert steps.find(rows(recorded_steps.MOST_TOKENS, 1)) is None
    sys.setprofile(lambda *_: None)
    try:
        found = steps.find(rows(1))
    finally:
        sys.setprofile(None)
    assert found is None, "a step whose parts are timed"


def test_a_size_is_recorded_once_it_has_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_steps, "RECORDED", 3)
    monkeypatch.setattr(recorded_steps, "MOST_TAPES", 1)
    steps = recorded(Layered())
    assert [steps.find(rows(2)) is None for _ in range(2)] == [True, True]
    assert [steps.find(rows(1)) is None for _ in range(2)] == [True, True]
    for size in (2, 2, 1):
        compute(steps, rows(size))
    assert list(steps._tapes) == [(1, 1)]
    assert steps.find(rows(2)) is None, "it has to come often once more"


def test_recording_imports_no_compiler() -> None:
    """PyTorch's takes seconds to import, which the first request would wait for."""
    program = """
import sys, torch
from gpu_worker.kernels.cpu.recorded_steps import _Memory, _Watch
with _Watch(_Memory(), 1.0):
    torch.empty(3)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_oldest_tape_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_steps, "MOST_TAPES", 2)
    steps = recorded(Layered())
    for counts in ((1,), (1, 1), (1, 1, 1)):
        compute(steps, rows(*counts))
    assert list(steps._tapes) == [(2, 2), (3, 3)]


def test_a_step_that_fails_leaves_no_tape() -> None:
    def fail(_: Tensor) -> None:
        raise MemoryError

    model = Layered(fail)
    steps = recorded(model)
    with pytest.raises(MemoryError):
        compute(steps, rows(1))
    model._more = None
    assert compute(steps, rows(1)).equal(model.expected(torch.tensor([1])))
