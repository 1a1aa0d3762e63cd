"""Bytes of fp8, made of bits: those that PyTorch makes."""

import torch
import triton
import triton.language as tl
from torch.testing import assert_close

from gpu_worker.kernels.reference.rows import FP8
from gpu_worker.kernels.triton.formats.fp8 import to_fp8, widen

SIZE = 4096


@triton.jit
def convert(numbers, codes, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(codes + at, to_fp8(tl.load(numbers + at), False))


@triton.jit
def convert_back(codes, numbers, FACTOR: tl.constexpr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(numbers + at, widen(tl.load(codes + at), FACTOR, False).to(tl.float32))


def test_every_number_is_widened_exactly() -> None:
    codes = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    for factor in (tl.float32, tl.float16):
        numbers = torch.zeros(256)
        convert_back[(1,)](codes, numbers, factor, 256)
        assert_close(numbers, codes.view(FP8).float(), atol=0, rtol=0, equal_nan=True)


def test_rounding_is_to_the_nearest_ties_to_even_and_saturates() -> None:
    every = torch.arange(127, dtype=torch.uint8).view(FP8).float()
    ties = (every[1:] + every[:-1]) / 2
    around = torch.cat([ties.nextafter(ties + 1), ties.nextafter(ties - 1)])
    odd = torch.tensor([449.0, 464.0, 1e30, torch.inf, torch.nan, 1e-30, 0.0])
    drawn = torch.randn(SIZE, generator=torch.Generator().manual_seed(0))
    positive = torch.cat((every, ties, around, odd, drawn, 1e-2 * drawn, 100 * drawn))
    numbers = torch.cat((positive, -positive))
    numbers = torch.cat((numbers, numbers.new_zeros(-len(numbers) % SIZE)))
    codes = torch.zeros(len(numbers), dtype=torch.uint8)
    convert[(len(numbers) // SIZE,)](numbers, codes, SIZE)
    expected = numbers.clamp(-448, 448).to(FP8).view(torch.uint8)
    sick = numbers.isnan()
    assert codes[~sick].equal(expected[~sick])
    assert (codes[sick] & 0x7F == 0x7F).all()
