"""The noise that makes draws: its generator against known answers, its distribution, its independence, and
how little rounding moves it."""

import pytest
import torch

from gpu_worker.kernels.reference.noise import gumbel, keys, philox

# Counter, key and words of philox4x32-10 in kat_vectors of the authors' Random123 library.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[torch.Tensor, ...]:
    return tuple(torch.tensor([int(word, 16)]) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer) -> None:
    assert philox(words(counter), words(key)) == words(answer)


def test_keys_depend_on_every_argument() -> None:
    positions = torch.arange(4096)
    ones = torch.ones_like(positions)
    found = keys(ones * -7, positions, ones)
    assert len(set(zip(*(word.tolist() for word in found), strict=True))) == 4096
    for other in (
        keys(ones * -8, positions, ones),
        keys(ones * (-7 + (1 << 40)), positions, ones),
        keys(ones * -7, positions, ones * 2),
    ):
        for word, changed in zip(found, other, strict=True):
            assert (word == changed).sum() < 3
    alone = keys(ones[:1] * -7, positions[9:10], ones[:1])
    assert [int(word) for word in alone] == [int(word[9]) for word in found]


ROWS, VOCABULARY = 4000, 64


def noise(seed: int = 5, rows: int = ROWS, vocabulary: int = VOCABULARY, sequence: int = 0) -> torch.Tensor:
    positions = torch.arange(rows)
    return gumbel(
        keys(torch.full_like(positions, seed), positions, torch.full_like(positions, sequence)), vocabulary
    )


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_it_is_gumbel_distributed() -> None:
    """Its double exponential is uniform: 64 cells, 63 degrees of freedom, p = 0.0001."""
    shares = torch.exp(-torch.exp(-noise())).double()
    counts = torch.histc(shares, 64, 0, 1)
    assert chi_square(counts, torch.full((64,), ROWS * VOCABULARY / 64)) < 117.4


def test_it_is_finite_everywhere() -> None:
    assert noise(rows=2000, vocabulary=2000).isfinite().all()


def test_draws_follow_the_probabilities() -> None:
    logits = torch.linspace(-3, 2, VOCABULARY)
    counts = torch.bincount((logits + noise(seed=9)).argmax(-1), minlength=VOCABULARY)
    assert chi_square(counts, logits.softmax(-1) * ROWS) < 117.4


def test_neighbours_know_nothing_of_each_other() -> None:
    """Tokens side by side, positions side by side, sequences and seeds side by side."""
    first = torch.exp(-torch.exp(-noise()))
    pairs = {
        "tokens": (first[:, :-1], first[:, 1:]),
        "positions": (first[:-1], first[1:]),
        "sequences": (first, torch.exp(-torch.exp(-noise(sequence=1)))),
        "seeds": (first, torch.exp(-torch.exp(-noise(seed=6)))),
    }
    for name, (one, other) in pairs.items():
        cells = (one * 8).long() * 8 + (other * 8).long()
        counts = torch.bincount(cells.flatten(), minlength=64)
        assert chi_square(counts, torch.full((64,), one.numel() / 64)) < 117.4, name


def test_rounding_changes_next_to_no_draw() -> None:
    """Logits that differ by a few millionths, as those of a prefill and of single steps do."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2000, 4096, generator=generator) * 3
    rounded = logits + (torch.rand(2000, 4096, generator=generator) - 0.5) * 1e-5
    drawn = noise(rows=2000, vocabulary=4096)
    assert ((logits + drawn).argmax(-1) != (rounded + drawn).argmax(-1)).sum() <= 1
