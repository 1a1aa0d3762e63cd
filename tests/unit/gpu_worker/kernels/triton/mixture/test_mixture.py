"""Mixtures of experts give what the reference gives, which computes one expert after the other."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from gpu_worker.errors import ModelError
from gpu_worker.kernels.interface import Kernels
from gpu_worker.kernels.products import UNGATED, Clamped, Expert
from gpu_worker.kernels.reference.int4 import Int4Reference
from gpu_worker.kernels.reference.kept import KeptReference
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.rows import FP8, quantized, widened
from gpu_worker.kernels.triton.kernels import Int4Triton, KeptTriton, QuantizedTriton, TritonKernels
from gpu_worker.kernels.triton.mixture import dequantized
from gpu_worker.kernels.triton.mixture.pairs import sort_pairs
from tests.support.scaled import fp8_groups, scaled_fp4

pytestmark = pytest.mark.usefixtures("poisoned")

DEVICE = torch.device("cpu")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def routed(tokens: int, top_k: int, experts: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Routing weights and distinct experts of each token. Some experts are selected much more often."""
    scores = drawn(tokens, experts, seed=seed) + 3 * drawn(1, experts, seed=seed + 1)
    return scores.sigmoid()[:, :top_k].contiguous(), scores.topk(top_k).indices


def weights(experts: int, size: int, inner: int, biased: bool = False) -> list[Expert]:
    found = []
    for expert in range(experts):
        up = drawn(2 * inner, size, seed=2 * expert) / size**0.5
        down = drawn(size, inner, seed=2 * expert + 1)
        biases = (drawn(2 * inner, seed=expert + 99), drawn(size, seed=expert + 199)) if biased else ()
        found.append(Expert(up, down, *biases))
    return found


@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "rows"),
    [
        (1, 1, 1, 16),
        (1, 2, 5, 16),
        (9, 2, 4, 16),
        (40, 3, 3, 16),
        (16, 8, 128, 16),
        (43, 3, 3, 16),
        (700, 2, 3, 32),
        (60, 8, 200, 16),
        (5, 3, 3, 16),
        (9000, 1, 7, 128),
    ],
)
def test_pairs(tokens: int, top_k: int, experts: int, rows: int) -> None:
    """Each pair is in one tile of its expert, in the order of the tokens."""
    routing_weights, selected_experts = routed(tokens, top_k, experts)
    found = sort_pairs(selected_experts, routing_weights, experts, rows)
    order, tiles = found.order, found.tiles
    assert order.tolist() == selected_experts.flatten().argsort(stable=True).tolist()
    covered = []
    for expert, begin, end in tiles.tolist():
        if expert >= 0:
            places = range(begin, min(begin + rows, end))
            assert all(selected_experts.flatten()[order[place]] == expert for place in places)
            covered += places
    assert covered == list(range(tokens * top_k))


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "size", "inner"),
    [(1, 2, 5, 32, 48), (7, 2, 3, 40, 24), (70, 3, 4, 96, 80), (3, 1, 1, 130, 70)],
)
def test_mixture(tokens: int, top_k: int, experts: int, size: int, inner: int, activation: str) -> None:
    hidden, own = drawn(tokens, size, seed=9), weights(experts, size, inner)
    routing = routed(tokens, top_k, experts)
    hidden[tokens // 2, 3] = torch.nan
    right, found = (
        kernels.mixture(iter(own), experts, activation)(hidden, *routing)
        for kernels in (ReferenceKernels(), TritonKernels(DEVICE))
    )
    assert found.dtype == torch.float32
    assert found.isnan().all(1).nonzero().flatten().tolist() == [tokens // 2]
    assert_close(found, right, atol=2e-5, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("tokens", [1, 70])
def test_biases_and_clamped_gates(tokens: int) -> None:
    """The experts of gpt-oss."""
    hidden, own = 4 * drawn(tokens, 40, seed=9), weights(4, 40, 24, biased=True)
    routing = routed(tokens, 3, 4)
    hidden[tokens // 2, 3] = torch.nan
    right, found = (
        kernels.mixture(iter(own), 4, Clamped(1.7, 2.0))(hidden, *routing)
        for kernels in (ReferenceKernels(), TritonKernels(DEVICE))
    )
    assert found.isnan().all(1).nonzero().flatten().tolist() == [tokens // 2]
    assert_close(found, right, atol=2e-5, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("form", ["plain", "4 bits", "fp8 in groups"])
@pytest.mark.parametrize("many", [0, 1000])
@pytest.mark.parametrize("tokens", [1, 70])
def test_experts_without_gates(tokens: int, many: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The experts of Nemotron H, here with biases."""
    monkeypatch.setattr(dequantized, "DEQUANTIZED_PAIRS", many)
    monkeypatch.setattr(dequantized, "UNPACKED_PAIRS", 64 if many else 8)
    hidden, own = drawn(tokens, 130, seed=9), weights(4, 130, 20, biased=True)
    own = [replace(each, down=drawn(130, 40, seed=number)) for number, each in enumerate(own)]
    kernels: tuple[Kernels, Kernels] = ReferenceKernels(), TritonKernels(DEVICE)
    if form == "4 bits":
        kernels = Int4Reference(), Int4Triton(DEVICE)
    elif form == "fp8 in groups":
        own = [replace(each, up=fp8_groups(40, 130, 32), down=fp8_groups(130, 40, 32)) for each in own]
        kernels = KeptReference(), KeptTriton(DEVICE)
    routing = routed(tokens, 3, 4)
    hidden[tokens // 2, 3] = torch.nan
    right, found = (each.mixture(iter(own), 4, UNGATED)(hidden, *routing) for each in kernels)
    assert found.isnan().all(1).nonzero().flatten().tolist() == [tokens // 2]
    assert_close(found, right, atol=2e-5, rtol=1e-4, equal_nan=True)
    if form == "plain":
        sums = torch.zeros(tokens, 130)
        for token in range(tokens):
            for weight, expert in zip(*(each[token] for each in routing), strict=True):
                one = own[expert]
                inner = (one.up @ hidden[token] + one.up_bias).clamp(min=0).square()
                sums[token] += weight * (one.down @ inner + one.down_bias)
        assert_close(right, sums, atol=2e-5, rtol=1e-4, equal_nan=True)


def test_in_bfloat16() -> None:
    hidden, own = (
        drawn(20, 64).bfloat16(),
        [Expert(each.up.bfloat16(), each.down.bfloat16()) for each in weights(4, 64, 32)],
    )
    routing = routed(20, 2, 4)
    right, found = (
        kernels.mixture(iter(own), 4)(hidden, *routing)
        for kernels in (ReferenceKernels(), TritonKernels(DEVICE))
    )
    assert found.dtype == torch.float32
    assert_close(found, right, atol=0.1, rtol=0.05)  # the interpreter cuts bfloat16 off


@pytest.mark.parametrize("numbers", [torch.int8, FP8], ids=str)
def test_weights_of_one_byte(numbers: torch.dtype) -> None:
    """As with what is left of the weights; activations are not rounded."""
    hidden, own = drawn(9, 40), weights(4, 40, 24)
    left = [
        Expert(
            *(
                widened(*(each.float() for each in quantized(part, numbers)), part.dtype)
                for part in (expert.up, expert.down)
            )
        )
        for expert in own
    ]
    routing = routed(9, 2, 4)
    right = ReferenceKernels().mixture(iter(left), 4)(hidden, *routing)
    found = QuantizedTriton(DEVICE, numbers).mixture(iter(own), 4)(hidden, *routing)
    assert_close(found, right, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("at_once", [10_000, 1 << 30])
@pytest.mark.parametrize("many", [0, 1000])
@pytest.mark.parametrize(
    ("tokens", "top_k", "experts", "size", "inner"), [(1, 2, 5, 32, 48), (70, 3, 4, 130, 80)]
)
def test_weights_of_4_bits(
    tokens: int,
    top_k: int,
    experts: int,
    size: int,
    inner: int,
    many: int,
    at_once: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unpacked in registers; and dequantized, all experts at once or one after the other."""
    monkeypatch.setattr(dequantized, "DEQUANTIZED_PAIRS", many)
    monkeypatch.setattr(dequantized, "UNPACKED_PAIRS", 64 if many else 8)
    monkeypatch.setattr(dequantized, "AT_ONCE_BYTES", at_once)
    hidden, own = drawn(tokens, size, seed=9), weights(experts, size, inner, biased=True)
    routing = routed(tokens, top_k, experts)
    hidden[tokens // 2, 3] = torch.nan
    right, found = (
        kernels.mixture(iter(own), experts)(hidden, *routing)
        for kernels in (Int4Reference(), Int4Triton(DEVICE))
    )
    assert found.isnan().all(1).nonzero().flatten().tolist() == [tokens // 2]
    assert_close(found, right, atol=2e-5, rtol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("many", [0, 1000])
@pytest.mark.parametrize("tokens", [1, 70])
def test_weights_of_fp4(tokens: int, many: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is rounded again: the result is that of plain weights."""
    monkeypatch.setattr(dequantized, "DEQUANTIZED_PAIRS", many)
    monkeypatch.setattr(dequantized, "UNPACKED_PAIRS", 64 if many else 8)
    hidden = drawn(tokens, 160, seed=9).to(dtype)
    own = [
        Expert(
            scaled_fp4(96, 160, dtype), scaled_fp4(160, 48, dtype), drawn(96).to(dtype), drawn(160).to(dtype)
        )
        for _ in range(4)
    ]
    plain = [replace(each, up=each.up.clone(), down=each.down.clone()) for each in own]
    routing = routed(tokens, 3, 4)
    right = ReferenceKernels().mixture(iter(plain), 4, Clamped(1.7, 7.0))(hidden, *routing)
    found = KeptTriton(DEVICE).mixture(iter(own), 4, Clamped(1.7, 7.0))(hidden, *routing)
    assert (found - right).norm() < (1e-5 if dtype == torch.float32 else 0.01) * right.norm()


@pytest.mark.parametrize("size", [32, 128, 256])
@pytest.mark.parametrize("many", [0, 1000])
@pytest.mark.parametrize("tokens", [1, 70])
def test_weights_of_fp8_in_groups(tokens: int, many: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is rounded again: the result is that of plain weights."""
    monkeypatch.setattr(dequantized, "DEQUANTIZED_PAIRS", many)
    monkeypatch.setattr(dequantized, "UNPACKED_PAIRS", 64 if many else 8)
    hidden = drawn(tokens, 400, seed=9)
    own = [
        Expert(fp8_groups(96, 400, size), fp8_groups(400, 48, size), drawn(96), drawn(400)) for _ in range(4)
    ]
    plain = [
        replace(each, up=each.up.codes.dequantized(), down=each.down.codes.dequantized()) for each in own
    ]
    routing = routed(tokens, 3, 4)
    right = ReferenceKernels().mixture(iter(plain), 4)(hidden, *routing)
    found = KeptTriton(DEVICE).mixture(iter(own), 4)(hidden, *routing)
    assert (found - right).norm() < 1e-5 * right.norm()


def test_experts_of_different_types() -> None:
    """If a matrix of the first is not of fp8, all are dequantized. A later one that differs is an error."""
    hidden, routing = drawn(5, 64, seed=9), routed(5, 2, 3)
    up, down = fp8_groups(96, 64, 32), fp8_groups(64, 48, 48)
    plain = Expert(up.codes.dequantized(), down.codes.dequantized())
    right = ReferenceKernels().mixture(iter([plain] * 3), 3)(hidden, *routing)
    mixed = [Expert(up, plain.down)] * 2 + [Expert(plain.up, down)]
    assert_close(KeptTriton(DEVICE).mixture(iter(mixed), 3)(hidden, *routing), right, atol=1e-4, rtol=1e-4)
    with pytest.raises(ModelError, match="experts 0 and 2 have weights of different types"):
        KeptTriton(DEVICE).mixture(iter([Expert(up, down)] * 2 + [plain]), 3)
    fp4 = Expert(scaled_fp4(96, 64), scaled_fp4(64, 48))
    with pytest.raises(ModelError, match="experts 0 and 1 have weights of different types"):
        KeptTriton(DEVICE).mixture(iter([fp4, plain]), 2)
