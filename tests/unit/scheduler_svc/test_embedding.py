"""Embeddings with fewer dimensions."""

import struct
from array import array
from math import hypot

import pytest

from scheduler_svc.embedding import first_dimensions


@pytest.mark.parametrize("count", [1, 3, 7])
def test_what_is_kept_points_the_same_way(count: int) -> None:
    numbers = [0.5, -0.25, 0.125, 0.7, 0.0, 0.1, -0.4]
    found = array("f", first_dimensions(struct.pack("<7f", *numbers), count))
    if count == 7:
        assert found.tolist() == pytest.approx(numbers)
        return
    assert hypot(*found) == pytest.approx(1.0)
    assert [each / found[0] for each in found] == pytest.approx([each / 0.5 for each in numbers[:count]])
