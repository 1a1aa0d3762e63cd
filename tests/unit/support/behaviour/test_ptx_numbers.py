"""The emulator's instructions on numbers, against what PTX says of them."""

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from tests.support.ptx.parse import PtxError
from tests.support.ptx.tiny import compute, run

INT, LONG, SHORT, FLOAT, DOUBLE = torch.int32, torch.int64, torch.int16, torch.float32, torch.float64
HALF, BFLOAT = torch.float16, torch.bfloat16
NAN, INF = math.nan, math.inf


def ints(*numbers: int, of: torch.dtype = INT) -> Tensor:
    """Bits, whether they are written with a sign or without."""
    bits = 8 * of.itemsize
    return torch.tensor(
        [(number + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) for number in numbers], dtype=of
    )


def floats(*numbers: float, of: torch.dtype = FLOAT) -> Tensor:
    return torch.tensor(numbers, dtype=of)


WHOLE = [
    ("add.s32", (0x7FFFFFFF, -1), (1, 1), (0x80000000, 0)),
    ("sub.s32", (0, 5), (1, 7), (-1, -2)),
    ("mul.lo.s32", (0x10001, -3), (0x10001, 5), (0x20001, -15)),
    ("mul.hi.u32", (0xFFFFFFFF, 1 << 31), (0xFFFFFFFF, 2), (0xFFFFFFFE, 1)),
    ("mul.hi.s32", (-1, 1 << 31), (7, 2), (-1, -1)),
    ("div.s32", (-7, 7, 6), (2, -2, 3), (-3, -3, 2)),
    ("rem.s32", (-7, 7, 6), (2, -2, 3), (-1, 1, 0)),
    ("div.u32", (-1, 7), (2, 8), (0x7FFFFFFF, 0)),
    ("min.s32", (-1, 3), (1, 2), (-1, 2)),
    ("min.u32", (-1, 3), (1, 2), (1, 2)),
    ("min.relu.s32", (-1, 3), (1, 2), (0, 2)),
    ("max.u32", (-1, 3), (1, 2), (-1, 3)),
    ("and.b32", (0b1100, -1), (0b1010, 7), (0b1000, 7)),
    ("xor.b32", (0b1100, -1), (0b1010, 7), (0b0110, -8)),
    ("shl.b32", (1, 1, 1), (31, 32, 40), (1 << 31, 0, 0)),
    ("shr.u32", (-1, -1, -1), (31, 32, 40), (1, 0, 0)),
    ("shr.s32", (-8, -8, 8), (1, 99, 99), (-4, -1, 0)),
]


@pytest.mark.parametrize(("opcode", "left", "right", "result"), WHOLE, ids=[row[0] for row in WHOLE])
def test_whole_numbers(opcode: str, left: tuple, right: tuple, result: tuple) -> None:
    assert compute(opcode, ints(*left), ints(*right), to=INT).equal(ints(*result))


def test_wide_products() -> None:
    assert compute("mul.wide.u32", ints(-1), ints(-1), to=LONG).equal(ints((2**32 - 1) ** 2, of=LONG))
    assert compute("mul.wide.s32", ints(-1), ints(5), to=LONG).equal(ints(-5, of=LONG))
    added = ints(2**40, of=LONG)
    assert compute("mad.wide.s32", ints(-3), ints(5), added, to=LONG).equal(ints(2**40 - 15, of=LONG))
    assert compute("mul.hi.s64", ints(-(2**62), of=LONG), ints(8, of=LONG), to=LONG).equal(ints(-2, of=LONG))


def test_bits() -> None:
    a, b, c = ints(0b11110000), ints(0b11001100), ints(0b10101010)
    for table, result in ((0xEA, (0xF0 & 0xCC) | 0xAA), (0x96, 0xF0 ^ 0xCC ^ 0xAA), (0x80, 0x80), (0, 0)):
        assert compute("lop3.b32", a, b, c, str(table), to=INT).equal(ints(result))
    low, high = ints(0x03020180), ints(0x07060504)
    # The last: the sign of byte 0, byte 1, the sign of byte 1, byte 4.
    bytes_ = ((0x3210, 0x03020180), (0x7654, 0x07060504), (0x0123, 0x80010203), (0x4918, 0x040001FF))
    for selector, result in bytes_:
        assert compute("prmt.b32", low, high, hex(selector), to=INT).equal(ints(result))
    assert compute("bfe.u32", ints(0xABCD1234), ints(8), ints(8), to=INT).equal(ints(0x12))
    assert compute("bfe.s32", ints(0x0000F000), ints(8), ints(8), to=INT).equal(ints(-16))
    assert compute("bfe.s32", ints(-1 << 28), ints(28), ints(16), to=INT).equal(ints(-1))
    assert compute("bfe.u32", ints(-1), ints(3), ints(0), to=INT).equal(ints(0))
    wide = ints(-(2**62) + 5, of=LONG)
    assert compute("bfe.u64", wide, ints(62), ints(9), to=LONG).equal(ints(3, of=LONG))
    assert compute("bfe.u64", wide, ints(0), ints(3), to=LONG).equal(ints(5, of=LONG))
    assert compute("popc.b32", ints(0x80000001), to=INT).equal(ints(2))


COMPARED = [
    ("eq", (False, True, False)),
    ("ne", (True, False, False)),
    ("lt", (True, False, False)),
    ("equ", (False, True, True)),
    ("neu", (True, False, True)),
    ("ltu", (True, False, True)),
    ("geu", (False, True, True)),
    ("nan", (False, False, True)),
    ("num", (True, True, False)),
]


@pytest.mark.parametrize(("how", "result"), COMPARED)
def test_comparisons_of_floats(how: str, result: tuple[bool, ...]) -> None:
    a, b, out = floats(1, 2, NAN), floats(2, 2, 2), torch.zeros(3, dtype=INT)
    run(
        f"""setp.gt.u32 %p1, %t, 2; @%p1 ret;
        mad.wide.u32 %d5, %t, 4, %d0; mad.wide.u32 %d6, %t, 4, %d1; mad.wide.u32 %d7, %t, 4, %d2;
        ld.global.b32 %r1, [%d5]; ld.global.b32 %r2, [%d6];
        setp.{how}.f32 %p2, %r1, %r2; selp.b32 %r3, 1, 0, %p2; st.global.b32 [%d7], %r3;""",
        [a, b, out],
    )
    assert tuple(out.bool().tolist()) == result


def test_floats() -> None:
    a = floats(1e-40, 2.0, NAN, INF)
    assert compute("max.f32", a, floats(0, NAN, 3, 4), to=FLOAT).equal(floats(1e-40, 2, 3, INF))
    assert compute("abs.ftz.f32", a[:2], to=FLOAT).equal(floats(0, 2))
    assert compute("neg.f32", floats(0.0), to=FLOAT).signbit().all()
    assert compute("ex2.approx.ftz.f32", floats(3, -200, -INF), to=FLOAT).equal(floats(8, 0, 0))
    assert compute("rcp.approx.ftz.f64", floats(3, of=DOUBLE), to=DOUBLE).sub(1 / 3).abs() < 1e-6
    with pytest.raises(PtxError, match="not known"):
        compute("tanh.approx.f32", a, to=FLOAT)


def test_a_sum_of_a_product_is_rounded_once() -> None:
    a, b = floats(1 + 2**-12), floats(1 - 2**-12)
    assert compute("fma.rn.f32", a, b, floats(-1), to=FLOAT).equal(floats(-(2**-24)))
    half = floats(1 + 2**-10, of=HALF)
    packed = half.repeat(2).view(INT)
    found = compute("fma.rn.f16x2", packed, packed, floats(-1, -1, of=HALF).view(INT), to=INT).view(HALF)
    assert found.equal(floats(2**-9 + 2**-20, 2**-9 + 2**-20, of=DOUBLE).half())
    # The product lies just above what is half way from 1 to the next bfloat16, and nearer to 1 in float32.
    a, b, c = (floats(each, each, of=BFLOAT).view(INT) for each in (2**-20, 2**-20, 1 + 2**-7))
    assert (
        compute("fma.rn.bf16x2", a, b, c, to=INT).view(BFLOAT).equal(floats(1 + 2**-7, 1 + 2**-7, of=BFLOAT))
    )
    a, b, c = (floats(each, each, of=BFLOAT).view(INT) for each in (2**-8 + 2**-15, 1 + 2**-7, 1.0))
    assert (
        compute("fma.rn.bf16x2", a, b, c, to=INT).view(BFLOAT).equal(floats(1 + 2**-7, 1 + 2**-7, of=BFLOAT))
    )


def test_conversions() -> None:
    numbers = floats(1.0, 1 + 2**-8, 1 + 3 * 2**-8, -65520.0, 1e-8, 3.4e38)
    assert compute("cvt.rn.bf16.f32", numbers, to=BFLOAT).equal(numbers.bfloat16())
    assert compute("cvt.rn.f16.f32", numbers, to=HALF).equal(numbers.half())
    assert compute("cvt.f32.bf16", numbers.bfloat16(), to=FLOAT).equal(numbers.bfloat16().float())
    pair = compute("cvt.rn.f16x2.f32", floats(1.5), floats(-2.0), to=INT).view(HALF)
    assert pair.equal(floats(-2, 1.5, of=HALF)), "the first operand is the upper half"
    wild = floats(2.7, -2.7, 1e9, -1e9, NAN)
    assert compute("cvt.rzi.s16.f32", wild, to=SHORT).equal(ints(2, -2, 32767, -32768, 0, of=SHORT))
    assert compute("cvt.rn.f32.s32", ints(-5, 2**24 + 1), to=FLOAT).equal(floats(-5, 2**24))
    assert compute("cvt.rn.bf16.s16", ints(-127, 257, of=SHORT), to=BFLOAT).equal(
        floats(-127, 256, of=BFLOAT)
    )
    assert compute("cvt.rn.f32.s8", ints(0x1FF, 0x7F, of=SHORT), to=FLOAT).equal(floats(-1, 127))
    assert compute("cvt.s64.s32", ints(-2), to=LONG).equal(ints(-2, of=LONG))
    assert compute("cvt.u64.u32", ints(-2), to=LONG).equal(ints(2**32 - 2, of=LONG))
    with pytest.raises(PtxError, match="no rounding"):
        compute("cvt.bf16.f16", floats(1 + 2**-10, of=HALF), to=BFLOAT)


def test_every_number_of_fp8_and_what_lies_between() -> None:
    codes = torch.arange(0, 256, 2)
    for some in codes.split(32):
        pairs = (some | some + 1 << 8).to(SHORT)
        found = compute("cvt.rn.f16x2.e4m3x2", pairs, to=INT).view(HALF)
        right = torch.stack((some, some + 1), 1).flatten().to(torch.uint8).view(torch.float8_e4m3fn).half()
        assert_close(found, right, atol=0, rtol=0, equal_nan=True)
    every = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = (every[1:] + every[:-1]) / 2
    for some in torch.cat((every, between, between.nextafter(every[1:]), floats(500, INF, 0, 1e-9))).split(
        32
    ):
        found = compute("cvt.rn.satfinite.e4m3x2.f32", -some, some, to=SHORT).view(torch.uint8).view(-1, 2)
        right = some.clamp(max=448).to(torch.float8_e4m3fn).view(torch.uint8)
        assert found[:, 0].equal(right)
        assert found[:, 1].equal(right | 0x80)


def test_registers_are_taken_apart_and_put_together() -> None:
    out = torch.zeros(4, dtype=INT)
    run(
        """mov.b32 %r1, 0x12345678; mov.b32 {%h1, %h2}, %r1; mov.b32 %r2, {%h2, %h1};
        { .reg .b32 low, high; mov.b64 %d5, {%r1, %r2}; mov.b64 {low, high}, %d5; mov.b32 %r3, high; }
        st.global.v2.b32 [%d0], {%r2, %r3};""",
        [out],
    )
    assert out[:2].equal(ints(0x56781234, 0x56781234))
