"""Weights of GGUF files: any rectangle of every type, and what back ends of 4 bits keep."""

import sys

import pytest
import torch

from gpu_worker.errors import ModelError
from gpu_worker.kernels.products import FP4, GROUP
from gpu_worker.models.formats.gguf import SIZES, GgufFormat, GgufWeight
from tests.support.gguf import KINDS, meant, random_blocks

CPU = torch.device("cpu")
PARTS = [(slice(0, 7), slice(0, 768)), (slice(2, 3), slice(300, 301)), (slice(1, 6), slice(31, 513))]


SUMS = {
    **{"IQ2_XXS": 1.420675, "IQ2_XS": -0.906866, "IQ2_S": -2.778159, "IQ3_XXS": 0.394244},
    **{"IQ3_S": 0.173367, "IQ1_S": -1.838943, "IQ1_M": 1.265022},
}
"""Sums of 4 rows of 512 weights times cosines, by llama.cpp's package gguf 0.19."""


def test_all_types_are_tested() -> None:
    assert set(SIZES) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rectangle_is_what_the_blocks_mean(kind: str) -> None:
    stored = random_blocks(kind, 7, 768)
    weight, expected = GgufWeight(kind, stored), meant(kind, stored)
    assert weight.shape == (7, 768)
    assert expected.std() > 0.01
    for rows, columns in PARTS:
        assert torch.equal(weight.part(rows, columns, CPU), expected[rows, columns])


@pytest.mark.parametrize("kind", SUMS)
def test_types_with_tables_mean_what_llama_cpp_says(kind: str) -> None:
    """transformers, with which other tests compare, has computed them."""
    found = GgufWeight(kind, random_blocks(kind, 4, 512)).part(slice(0, 4), slice(0, 512), CPU)
    cosines = torch.arange(2048, dtype=torch.float64).cos()
    assert (found.flatten().double() @ cosines).item() == pytest.approx(SUMS[kind], abs=1e-5)


def test_a_version_of_transformers_without_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.integrations.gguf.dequant", None)
    weight = GgufWeight("IQ3_S", random_blocks("Q3_K", 1, 256))
    with pytest.raises(ModelError, match="IQ3_S of GGUF files needs a newer version of transformers"):
        weight.part(slice(0, 1), slice(0, 256), CPU)


@pytest.mark.parametrize("kind", KINDS)
def test_4_bits_are_whole_multiples_of_scales_beside_shifts(kind: str) -> None:
    stored = random_blocks(kind, 5, 512)
    rows, columns = slice(1, 4), slice(96, 352)
    found = GgufWeight(kind, stored).int4_scales(rows, columns)
    if kind not in ("Q4_0", "Q4_1", "Q4_K"):
        assert found is None
        return
    assert found is not None
    scales, shifts = found
    assert scales.dtype == torch.float16
    assert scales.shape == (3, 8)
    assert shifts.shape == (3, 0 if kind == "Q4_0" else 8)
    wide = scales.float().repeat_interleave(GROUP, 1)
    shifted = shifts.repeat_interleave(GROUP, 1) if shifts.shape[1] else torch.zeros(3, 256)
    numbers = (meant(kind, stored)[rows, columns] - shifted) / wide
    whole = numbers.round()
    assert set(whole.unique().tolist()) == set(range(-8, 8))
    # Scales of Q4_K are rounded to float16.
    torch.testing.assert_close(numbers, whole, rtol=0, atol=0.01 if kind == "Q4_K" else 1e-5)
    torch.testing.assert_close(whole * wide + shifted, meant(kind, stored)[rows, columns], rtol=0, atol=3e-4)


def test_fp4_is_multiples_of_scales() -> None:
    stored, rows, columns = random_blocks("MXFP4", 5, 512), slice(1, 4), slice(96, 352)
    scales = GgufWeight("MXFP4", stored).fp4_scales(rows, columns)
    assert scales is not None
    assert scales.dtype == torch.float16
    assert scales.shape == (3, 8)
    numbers = meant("MXFP4", stored)[rows, columns] / scales.float().repeat_interleave(GROUP, 1)
    assert set(numbers.unique().tolist()) == set(FP4.tolist())
    assert GgufWeight("MXFP4", stored).fp4_scales(rows, slice(16, 64)) is None
    small = stored.clone()
    small[0, 0] = 1  # the scale of the first group: 2^-126
    assert GgufWeight("MXFP4", small).fp4_scales(slice(0, 1), slice(0, 64)) is None
    small[0, 1:17] = 8  # zeros, of both signs
    found = GgufWeight("MXFP4", small).fp4_scales(slice(0, 1), slice(0, 64))
    assert found is not None
    assert found[0, 0] == 0
    assert GgufWeight("Q4_0", random_blocks("Q4_0", 2, 64)).fp4_scales(slice(0, 2), slice(0, 64)) is None


@pytest.mark.parametrize("kind", KINDS)
def test_codes_mean_what_the_blocks_mean(kind: str) -> None:
    stored = random_blocks(kind, 7, 768)
    weight, expected = GgufWeight(kind, stored), meant(kind, stored)
    found = weight.codes(slice(0, 7), slice(0, 768))
    assert found is not None
    torch.testing.assert_close(found.dequantized(), expected, rtol=1e-6, atol=1e-9)
    has_factors = kind.endswith("_K") or (kind.startswith("IQ") and kind != "IQ4_NL")
    for each in (found.scales, found.shifts):
        if each is not None:
            assert each.dtype == (torch.int8 if has_factors else torch.float16), "as small as in the file"
    # A part that begins within a block, and one within a group.
    part = weight.codes(slice(1, 6), slice(32, 513))
    if part is None:
        assert found.size > 32
    else:
        torch.testing.assert_close(part.dequantized(), expected[1:6, 32:513], rtol=1e-6, atol=1e-9)
    assert weight.codes(slice(1, 6), slice(8, 513)) is None


def test_a_rectangle_within_a_group_has_no_scales() -> None:
    weight = GgufWeight("Q4_0", random_blocks("Q4_0", 2, 64))
    assert weight.int4_scales(slice(0, 2), slice(16, 64)) is None
    assert weight.int4_scales(slice(0, 2), slice(0, 48)) is None


def test_the_end_of_the_name_says_the_type() -> None:
    stored = random_blocks("Q6_K", 2, 256)
    found = GgufFormat().weight("q.", {"weight.Q6_K": stored})
    assert found is not None
    assert found.kind == "Q6_K"
    assert GgufFormat().weight("q.", {"weight": torch.zeros(2, 2)}) is None
    with pytest.raises(ModelError, match=r"tensor q\.weight has 3 dimensions"):
        GgufFormat().weight("q.", {"weight.Q6_K": stored[None]})
