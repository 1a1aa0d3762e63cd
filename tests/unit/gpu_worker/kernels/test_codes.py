"""Codes of several matrices become one, exactly, or not at all."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from gpu_worker.kernels.codes import CodedWeight, Codes, gathered, joined, narrowed
from tests.support.coded import coded


def codes(kind: str, more: bool = False, inputs: int = 96) -> Codes:
    return coded(kind, 6, inputs, more=more).codes


def of_groups(size: int) -> Codes:
    found = codes("int8")
    each = size // found.size
    return replace(found, size=size, scales=found.scales[:, ::each], shifts=None)


def of_bytes() -> Codes:
    """Scales and shifts of a byte, with factors."""
    found = replace(codes("int8", more=True), order=None)
    scales = (found.scales * 900).to(torch.int8)
    return replace(found, scales=scales, shifts=-scales, shift_factors=found.factors)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([codes("int8"), codes("int8")], "int8"),
        ([codes("whole"), codes("int8")], "int8"),
        ([of_groups(32), codes("int8")], "int8"),
        ([of_groups(96), codes("whole"), of_groups(32)], "int8"),
        ([codes("whole"), codes("whole")], "table"),
        ([codes("table"), codes("table")], "table"),
        ([codes("fp8"), replace(codes("fp8"), scales=codes("fp8").scales.float() / 3)], "fp8"),
        ([codes("int8", more=True), codes("int8", more=True)], "int8"),
        ([replace(codes("int8", more=True), order=None), codes("whole")], "int8"),
        ([of_bytes(), of_bytes()], "int8"),
        ([of_bytes(), codes("whole")], "int8"),
        ([of_bytes(), replace(of_bytes(), span=96)], "int8"),
        ([of_bytes(), replace(codes("int8", more=True), order=None)], "int8"),
        ([replace(codes("int8", more=True), order=None, span=0), of_groups(96)], "int8"),
    ],
)
def test_parts_mean_the_same_together(parts: list[Codes], kind: str) -> None:
    for each in parts:
        if each.span == 0 and each.factors is not None:
            object.__setattr__(each, "factors", each.factors[:, :1])  # one for all inputs
    found = joined(parts)
    assert found is not None
    assert found.kind == kind
    expected = torch.cat([each.dequantized() for each in parts])
    torch.testing.assert_close(found.dequantized(), expected, rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize(
    "parts",
    [
        [codes("fp8"), codes("int8")],
        [codes("table"), codes("whole")],
        [codes("table"), codes("int8")],
        [codes("int8"), replace(codes("int8"), order=torch.arange(96).flip(0).int())],
        [replace(codes("int8"), size=12, scales=torch.ones(6, 8))],
    ],
)
def test_parts_that_do_not_go_together(parts: list[Codes]) -> None:
    assert joined(parts) is None


def test_scales_are_narrow_where_that_is_exact() -> None:
    halves = torch.tensor([[1.0, 0.3], [2.0**-14, 5.0]]).half().float()
    assert narrowed(halves)[1] is None
    for scales, factor in ((halves * 2.0**-40, 1.0), (halves * 2.0**40, 1.0), (halves / 3.7, 1 / 3.7)):
        narrow, factors = narrowed(scales, factor)
        assert narrow.dtype == torch.float16
        assert factors is not None
        torch.testing.assert_close(narrow.float() * factors, scales, rtol=3e-7, atol=0)
    wide, none = narrowed(halves / 3.7)
    assert none is None
    assert torch.equal(wide, halves / 3.7)


def test_rows_of_a_weight_have_their_codes() -> None:
    weight, order = coded("whole", 6, 96, more=True), torch.tensor([4, 0, 0])
    found = weight[order]
    assert isinstance(found, CodedWeight)
    assert torch.equal(found.codes.dequantized(), weight.codes.dequantized()[order])


@pytest.mark.parametrize(
    "kinds", [("int8",), ("int8", "int8"), ("int8", "whole", "int8"), ("table", "table")]
)
def test_parts_are_gathered_as_they_come(kinds: tuple[str, ...]) -> None:
    """Of different kinds too; a part may be gone when the next one comes."""
    meant = [coded(kind, rows, 96).codes for rows, kind in enumerate(kinds, 3)]

    def pieces() -> Iterator[Codes]:
        for part in meant:
            passing = part.numbers.clone()
            yield replace(part, numbers=passing)
            passing.zero_()

    found = gathered(pieces(), sum(len(each.numbers) for each in meant))
    assert found is not None
    assert torch.equal(found.dequantized(), torch.cat([each.dequantized() for each in meant]))


def test_nothing_is_gathered_of_what_has_no_codes() -> None:
    assert gathered([codes("int8"), None], 12) is None
    assert gathered([codes("int8"), codes("fp8")], 12) is None


def test_a_weight_of_codes_has_no_values() -> None:
    weight = coded("whole", 6, 96, torch.bfloat16)
    assert weight.shape == (6, 96)
    assert weight.dtype == torch.bfloat16
    assert weight.float().isnan().all()
