"""What counts as the same numbers, in float32 and in types of lower precision."""

import pytest
import torch

from gpu_worker.models.trial import EXACT, ROUNDED, STRAY, differs

ROWS = torch.randn(100, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("share", "exact", "differ"), [(0.5, True, False), (2, True, True), (2, False, False)]
)
def test_float32_is_held_to_more_than_what_is_rounded(share: float, exact: bool, differ: bool) -> None:
    assert differs(ROWS * (1 + share * EXACT), ROWS, exact) is differ


@pytest.mark.parametrize("wrong", [float("nan"), 2.0])
def test_a_few_tokens_may_be_others_where_numbers_are_rounded(wrong: float) -> None:
    few, many = (ROWS.clone() for _ in range(2))
    few[: int(STRAY * 100)] *= wrong
    many[: int(STRAY * 100) + 1] *= wrong
    assert not differs(few * (1 + ROUNDED / 2), ROWS, exact=False)
    assert differs(many, ROWS, exact=False)
    assert differs(few, ROWS, exact=True)
