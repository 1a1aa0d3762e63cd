"""The generator against its published known answers."""

import pytest
import torch

from gpu_worker.sampling.philox import keys, philox

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
