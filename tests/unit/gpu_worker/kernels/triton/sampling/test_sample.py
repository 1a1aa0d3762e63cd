"""Sampling in Triton, token for token against the reference."""

import os

import pytest
import torch
import triton.language as tl

from gpu_worker.kernels.reference.sampling import sample as reference
from gpu_worker.kernels.sampling import INTEGERS, NUMBERS
from gpu_worker.kernels.triton.sampling import draw, held, reread
from gpu_worker.kernels.triton.sampling.sample import sample
from tests.unit.gpu_worker.kernels.test_sampling import logits, random_step

pytestmark = pytest.mark.usefixtures("poisoned")


SMALL = {"GROUP": 4, "PART": 16, "CHOSEN": 4, "TILE": 32}
SIZES = {"real": {}, "small": SMALL, "close": SMALL | {"MARGIN": tl.constexpr(9.0)}}
"""Of groups, parts, .. in `draw.py`. Of the small ones a row has many, and the chosen groups are often not
enough. With a wide margin many sums of score and noise are compared exactly."""


@pytest.fixture(params=SIZES)
def sizes(request, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "close" and os.environ.get("TEST_EMULATED"):
        pytest.skip("a compiled kernel's constants stay")
    for name, value in SIZES[request.param].items():
        for module in (draw, held, reread):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


# Vocabularies that divide into tiles and that do not, of one tile, and of many small or two real ones.
@pytest.mark.parametrize(
    ("sizes", "count", "vocabulary"),
    [
        *((sizes, 36, 97) for sizes in SIZES),
        *(("small", 18, 96), ("real", 5, draw.TILE + 70), ("small", 5, draw.TILE + 70)),
    ],
    indirect=["sizes"],
)
@pytest.mark.usefixtures("sizes")
def test_chooses_what_the_reference_chooses(make, count: int, vocabulary: int) -> None:
    """All kinds of parameters, over logits with many ties."""
    scores, slots, known, state = random_step(make, count, vocabulary)
    before = scores.clone()
    arguments = scores, slots, torch.from_numpy(slots).long(), known, state
    assert sample(*arguments).tokens.tolist() == reference(*arguments).tokens.tolist()
    assert scores.equal(before), "the caller's logits are not the sampler's to change"


@pytest.mark.usefixtures("sizes")
def test_rows_in_any_order_and_some_without_logits(make) -> None:
    scores, slots, known, state = random_step(make, 12, 97)
    scores[[1, 5], 40] = torch.tensor([torch.nan, torch.inf])
    order = torch.tensor([7, 1, 10, 5, 0])
    chosen = slots[order.numpy()]
    arguments = scores[order], chosen, order, known[chosen], state
    found, expected = sample(*arguments), reference(*arguments)
    assert found.finite.tolist() == [True, False, True, False, True]
    assert found.tokens[found.finite].tolist() == expected.tokens[found.finite].tolist()
    assert ((found.tokens >= 0) & (found.tokens < 97)).all()


@pytest.mark.usefixtures("sizes")
def test_ties_at_every_edge(make) -> None:
    """Equal logits everywhere: what is kept is a number of tokens, the lowest ones."""
    scores, slots, known, state = random_step(make, 4, 97)
    ask = [{"top_k": 7}, {"top_p": 0.25}, {"top_k": 40, "top_p": 0.5}, {"min_p": 1.0, "top_k": 3}]
    scores[:] = 1.5
    state.flags[:] = 3
    state.numbers[:, NUMBERS["temperature"]] = 1
    for slot, wanted in enumerate(ask):
        state.numbers[slot, NUMBERS["top_p"]] = wanted.get("top_p", 1.0)
        state.numbers[slot, NUMBERS["min_p"]] = wanted.get("min_p", 0.0)
        state.integers[slot, INTEGERS["top_k"]] = wanted.get("top_k", 0)
    for seed in range(4):
        state.integers[:, INTEGERS["seed"]] = seed
        arguments = scores, slots, torch.from_numpy(slots).long(), known, state
        found = sample(*arguments).tokens
        assert found.tolist() == reference(*arguments).tokens.tolist()
        assert (found < torch.tensor([7, 25, 20, 3])).all()


@pytest.mark.parametrize("vocabulary", [97, 96])
def test_greedy_takes_the_first_of_equals(make, vocabulary: int) -> None:
    """Also of those in different parts of a row."""
    scores, slots, known, state = random_step(make, 2, vocabulary)
    state.flags[:] = 0
    scores[:] = logits()[:vocabulary] - 100
    scores[0, [40, 12, 13, 70]] = 3.0
    scores[1, [5, 71]] = torch.nan
    found = sample(scores, slots, torch.arange(2), known, state)
    assert found.tokens.tolist() == [12, 5]
    assert found.finite.tolist() == [True, False]
