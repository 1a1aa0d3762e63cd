"""Mixtures of the library give what one expert after the other gives, on every instruction set."""

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_worker.kernels.cpu.kernels import (
    CpuKernels,
    Int4Kernels,
    KeptKernels,
    OneDnnKernels,
    QuantizedKernels,
)
from gpu_worker.kernels.cpu.mixture import Add, CpuMixture, CpuRoute
from gpu_worker.kernels.cpu.tape import Tape
from gpu_worker.kernels.products import UNGATED, Clamped, Expert, Routing
from gpu_worker.kernels.reference.kernels import ReferenceKernels
from gpu_worker.kernels.reference.mixture import ReferenceMixture
from gpu_worker.kernels.reference.route import ReferenceRoute
from tests.support.coded import coded
from tests.support.native import WITH_UNITS, with_team

CLAMPED = Clamped(alpha=1.7, limit=1.1)
KINDS = {"plain": CpuKernels, "int8": QuantizedKernels, "int4": Int4Kernels}


@pytest.fixture(params=WITH_UNITS, scope="module")
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    return with_team(request.param, 2)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def routed(tokens: int, each: int, experts: int) -> tuple[Tensor, Tensor]:
    """Some experts have most of the tokens, and some none."""
    scores = drawn(tokens, experts, seed=7) + 3 * drawn(1, experts, seed=8)
    return scores.sigmoid()[:, :each], scores.topk(each).indices


def experts(count: int, size: int, inner: int, activation: Any, dtype: torch.dtype) -> list[Expert]:
    ups = inner if activation == UNGATED else 2 * inner
    biased = isinstance(activation, Clamped)
    found = []
    for number in range(count):
        up, down = drawn(ups, size, seed=2 * number), drawn(size, inner, seed=2 * number + 1)
        biases = (drawn(ups, seed=number + 99).to(dtype), drawn(size, seed=number + 199).to(dtype))
        pair = (up / size**0.5).to(dtype), (down / inner**0.5).to(dtype)
        found.append(Expert(*pair, *(biases if biased else ())))
    return found


def near(found: Tensor, expected: Tensor, dtype: torch.dtype, kind: str) -> None:
    """Activations between the products may differ in their last place, and then be quantized otherwise."""
    most = 0.02 if dtype is torch.bfloat16 else 1e-5
    most = max(most, {"plain": 0, "int8": 0.02, "int4": 0.02}[kind])
    assert (found - expected).abs().max() <= most * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["silu", UNGATED, CLAMPED], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_mixtures(library: ctypes.CDLL, kind: str, activation: Any, dtype: torch.dtype) -> None:
    kernels = KINDS[kind](library)
    for tokens, each, count, size, inner in ((1, 2, 3, 64, 32), (25, 2, 4, 65, 41)):
        given = experts(count, size, inner, activation, dtype)
        mixture = kernels.mixture(iter(given), count, activation)
        assert isinstance(mixture, CpuMixture)
        hidden, routes = drawn(tokens, size, seed=3).to(dtype), routed(tokens, each, count)
        found = mixture(hidden, *routes)
        expected = ReferenceMixture.of(kernels, given, activation)(hidden, *routes)
        assert found.dtype is torch.float32
        assert expected.std() > 0.1
        near(found, expected, dtype, kind)
        for token in (0, tokens - 1):
            own = slice(token, token + 1)
            alone = mixture(hidden[own], *(part[own] for part in routes))
            assert torch.equal(alone[0], found[token]), "a token does not depend on the others"


@pytest.mark.parametrize("tokens", [6, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_as_a_checkpoint_has_them(library: ctypes.CDLL, dtype: torch.dtype, tokens: int) -> None:
    """Codes, of which each expert may have others; and tokens may be a part of longer rows."""
    kernels = KeptKernels(library)
    kinds = ("int8", "whole", "fp8", "table")
    given = [Expert(coded(kind, 64, 64, dtype), coded(kind, 64, 32, dtype)) for kind in kinds]
    mixture = kernels.mixture(given, len(given))
    assert isinstance(mixture, CpuMixture)
    hidden, routes = drawn(tokens, 80).to(dtype)[:, :64], routed(tokens, 2, 4)
    found = mixture(hidden, *routes)
    expected = ReferenceMixture.of(kernels, given, "silu")(hidden.contiguous(), *routes)
    most = 1e-4 if dtype is torch.float32 else 0.02 * float(expected.abs().max())
    torch.testing.assert_close(found, expected, atol=most, rtol=1e-4)
    for token in range(tokens):
        own = slice(token, token + 1)
        assert torch.equal(mixture(hidden[own], *(part[own] for part in routes))[0], found[token])


def test_many_rows_of_many_experts(library: ctypes.CDLL) -> None:
    """More rows than are computed at once, and experts that no token is routed to."""
    count, tokens, each = 9, 700, 3
    given = experts(count, 32, 48, "silu", torch.float32)
    mixture = CpuKernels(library).mixture(given, count)
    hidden, (weights, selected) = drawn(tokens, 32), routed(tokens, each, count - 1)
    found = mixture(hidden, weights, selected)
    expected = ReferenceMixture.of(CpuKernels(library), given, "silu")(hidden, weights, selected)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(mixture(hidden[:5], weights[:5], selected[:5]), found[:5])


def test_a_tape_repeats_a_mixture(library: ctypes.CDLL) -> None:
    mixture = CpuKernels(library).mixture(experts(4, 32, 48, "silu", torch.float32), 4)
    hidden, (weights, selected) = drawn(3, 32), routed(3, 2, 4)
    weights = weights.contiguous()
    tape = Tape(library)
    with tape.recording():
        found = mixture(hidden, weights, selected)
    hidden.copy_(drawn(3, 32, seed=5))
    selected.copy_(selected.flip(0))
    tape.play()
    assert torch.equal(found, mixture(hidden, weights, selected))


def test_products_of_another_library_are_computed_one_by_one(library: ctypes.CDLL) -> None:
    given = experts(3, 32, 48, CLAMPED, torch.float32)
    mixture = OneDnnKernels(library).mixture(given, 3, CLAMPED)
    assert isinstance(mixture, ReferenceMixture)
    hidden, routes = drawn(5, 32), routed(5, 2, 3)
    expected = CpuKernels(library).mixture(given, 3, CLAMPED)(hidden, *routes)
    torch.testing.assert_close(mixture(hidden, *routes), expected, atol=1e-5, rtol=1e-5)


def test_tokens_of_another_size_are_refused(library: ctypes.CDLL) -> None:
    mixture = CpuKernels(library).mixture(experts(2, 32, 48, "silu", torch.float32), 2)
    with pytest.raises(ValueError, match="expected"):
        mixture(drawn(3, 31), *routed(3, 1, 2))


ROUTINGS = [
    Routing(2),
    Routing(3, normalized=True),
    Routing(3, "sigmoid", normalized=True, scale=2.5),
    Routing(2, "sigmoid", num_groups=4, top_k_groups=2, group_top_k=2),
    Routing(4, scale=0.5, num_groups=3, top_k_groups=2),
]


@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
@pytest.mark.parametrize("experts", [12, 60])
def test_routes(library: ctypes.CDLL, routing: Routing, experts: int) -> None:
    for corrections in (None, drawn(experts, seed=9) / 4):
        for tokens in (1, 37):
            logits = 2 * drawn(tokens, experts, seed=tokens)
            weights, selected = CpuRoute(library, routing, corrections)(logits)
            expected = ReferenceRoute(routing, corrections)(logits)
            assert torch.equal(selected, expected[1])
            torch.testing.assert_close(weights, expected[0], atol=1e-6, rtol=2e-6)


def test_of_equal_experts_the_first_are_selected(library: ctypes.CDLL) -> None:
    """And distinct ones, even of logits that are no numbers."""
    route = CpuRoute(library, Routing(3), None)
    logits = torch.zeros(3, 9)
    logits[1, 4:6], logits[2] = 1.0, torch.nan
    assert route(logits)[1].tolist() == [[0, 1, 2], [4, 5, 0], [0, 1, 2]]
    with pytest.raises(ValueError, match="3 of 2"):
        route(torch.zeros(1, 2))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("numbers", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("into", [torch.float32, torch.bfloat16])
def test_sums(library: ctypes.CDLL, into: torch.dtype, numbers: torch.dtype, gated: bool) -> None:
    for tokens, size in ((1, 64), (5, 33)):
        found, more = drawn(tokens, size).to(into), drawn(tokens, size, seed=1).to(numbers)
        gates = drawn(tokens, 1, seed=2) if gated else None
        expected = found.clone()
        ReferenceKernels().add(expected, more, gates)
        Add(library)(found, more, gates)
        torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match="cannot be added"):
        Add(library)(drawn(5, 4), drawn(1, 4))
