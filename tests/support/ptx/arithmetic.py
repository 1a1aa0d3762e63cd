"""Instructions that compute a number for each thread from its own registers."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.support.ptx.operands import Step, elementwise
from tests.support.ptx.parse import Instruction
from tests.support.ptx.types import TYPES, Array, odd

INTEGERS = "s16 s32 s64 u16 u32 u64"
FLOATS = "f16 f32 f64 bf16 f16x2 bf16x2"
TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True)
class Rule:
    function: Callable[..., Array]
    types: str
    """That it is for."""
    sources: int = 2
    wide: bool = False
    """The result, and what is added, have twice the bits."""


def flushed(value: Array) -> Array:
    """`.ftz`: numbers too small for a full fraction are zero."""
    return np.where(np.abs(value) < TINY, np.copysign(np.float32(0), value), value)


def flushing(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *sources: flushed(function(*(flushed(each) for each in sources)))


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c of numbers of at most 32 bits.

    The product is exact in float64. The sum is rounded there and again, which in float32 gives a neighbour
    of the nearest once in some 2^29 times, and of 16 bits is exact unless the summands are 2^53 apart.
    """
    total = a.astype(np.float64) * b + c
    return total.astype(np.float32) if a.dtype == np.float32 else odd(total)


def fused_bf16(a: Array, b: Array, c: Array) -> Array:
    return odd(a.astype(np.float64) * b + c)


def fused_double(a: Array, b: Array, c: Array) -> Array:
    """With 64 bits of fraction in between, of the 106 that a product has: the last bit may be another."""
    return (a.astype(np.longdouble) * b + c).astype(np.float64)


def high(a: Array, b: Array) -> Array:
    """The upper half of a product."""
    if a.dtype.itemsize < 8:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return (a.astype(wide) * b.astype(wide) >> wide(8 * a.dtype.itemsize)).astype(a.dtype)
    products = [int(x) * int(y) >> 64 for x, y in zip(*np.broadcast_arrays(a, b), strict=True)]
    return np.array(products, a.dtype)


def widened(a: Array, b: Array, *added: Array) -> Array:
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    product = a.astype(wide) * b.astype(wide)
    return product + added[0] if added else product


def quotient(a: Array, b: Array) -> Array:
    """Towards zero."""
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)) if a.dtype.kind == "i" else a // b


def remainder(a: Array, b: Array) -> Array:
    """With the sign of `a`."""
    return a - quotient(a, b) * b


def rough_reciprocal(value: Array) -> Array:
    """float64, of which the upper half goes in and comes out."""
    upper = np.uint64(0xFFFFFFFF00000000)
    with np.errstate(divide="ignore"):
        inverse = 1.0 / (np.ascontiguousarray(value).view(np.uint64) & upper).view(np.float64)
    return (inverse.view(np.uint64) & upper).view(np.float64)


def root_inverse(value: Array) -> Array:
    return (1.0 / np.sqrt(value.astype(np.float64))).astype(np.float32)


def left(value: Array, by: Array) -> Array:
    width = 8 * value.itemsize
    moved = value << np.minimum(by, width - 1).astype(value.dtype)
    return np.where(by >= width, value.dtype.type(0), moved)


def right(value: Array, by: Array) -> Array:
    """Copies of the sign move in, if there is one."""
    width = 8 * value.itemsize
    moved = value >> np.minimum(by, width - 1).astype(value.dtype)
    return moved if value.dtype.kind == "i" else np.where(by >= width, value.dtype.type(0), moved)


def chosen(yes: Array, no: Array, which: Array) -> Array:
    return np.where(which, yes, no)


RULES = {
    "add": Rule(np.add, f"{INTEGERS} {FLOATS} s16x2 u16x2"),
    "add.rn": Rule(np.add, FLOATS),
    "sub": Rule(np.subtract, f"{INTEGERS} {FLOATS}"),
    "sub.rn": Rule(np.subtract, FLOATS),
    "mul": Rule(np.multiply, FLOATS),
    "mul.rn": Rule(np.multiply, FLOATS),
    "mul.lo": Rule(np.multiply, INTEGERS),
    "mul.hi": Rule(high, INTEGERS),
    "mul.wide": Rule(widened, "s16 u16 s32 u32", wide=True),
    "mad.lo": Rule(lambda a, b, c: a * b + c, INTEGERS, sources=3),
    "mad.wide": Rule(widened, "s16 u16 s32 u32", sources=3, wide=True),
    "fma.rn": Rule(fused, "f32 f16 f16x2", sources=3),
    "fma.rn.ftz": Rule(flushing(fused), "f32", sources=3),
    "div": Rule(quotient, INTEGERS),
    "rem": Rule(remainder, INTEGERS),
    "div.rn": Rule(np.divide, "f32 f64"),
    "div.full": Rule(np.divide, "f32"),
    "rcp.approx.ftz": Rule(rough_reciprocal, "f64", sources=1),
    "rsqrt.approx.ftz": Rule(flushing(root_inverse), "f32", sources=1),
    "ex2.approx": Rule(np.exp2, "f32", sources=1),
    "ex2.approx.ftz": Rule(flushing(np.exp2), "f32", sources=1),
    "neg": Rule(np.negative, "s16 s32 s64 f32 f64", sources=1),
    "abs": Rule(np.abs, "s32 f32 f64", sources=1),
    "abs.ftz": Rule(flushing(np.abs), "f32", sources=1),
    "min": Rule(np.minimum, INTEGERS),
    "max": Rule(np.maximum, INTEGERS),
    "min.relu": Rule(lambda a, b: np.maximum(np.minimum(a, b), 0), "s32"),
    "max.relu": Rule(lambda a, b: np.maximum(np.maximum(a, b), 0), "s32"),
    "and": Rule(np.bitwise_and, "b16 b32 b64 pred"),
    "or": Rule(np.bitwise_or, "b16 b32 b64 pred"),
    "xor": Rule(np.bitwise_xor, "b16 b32 b64 pred"),
    "not": Rule(np.invert, "b16 b32 b64 pred", sources=1),
}
OTHERS = {
    "min.f32": Rule(np.fmin, "f32"),  # of a number and a NaN the number
    "max.f32": Rule(np.fmax, "f32"),
    "fma.rn.bf16": Rule(fused_bf16, "bf16", sources=3),
    "fma.rn.bf16x2": Rule(fused_bf16, "bf16x2", sources=3),
    "fma.rn.f64": Rule(fused_double, "f64", sources=3),
}
"""Rules for one type."""

COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "neu": np.not_equal,
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
}
"""Those that end in u are true of NaNs."""


def build(instruction: Instruction) -> Step | None:
    stem, _, kind = instruction.opcode.rpartition(".")
    if stem.startswith("setp."):
        return _comparison(instruction, stem[5:], kind)
    if stem in ("shl", "shr") and kind in TYPES:
        function = left if stem == "shl" else right
        return elementwise(instruction, function, kind, (kind, "u32"))
    if stem == "selp" and kind in TYPES:
        return elementwise(instruction, chosen, kind, (kind, kind, "pred"))
    rule = OTHERS.get(instruction.opcode) or RULES.get(stem)
    if rule is None or kind not in rule.types.split():
        return None
    wide = f"{kind[0]}{2 * int(kind[1:])}" if rule.wide else kind
    sources = (kind, kind, wide)[: rule.sources]
    return elementwise(instruction, rule.function, wide, sources)


def _comparison(instruction: Instruction, name: str, kind: str) -> Step | None:
    whole = kind[0] in "bsu"
    if name == "ne" and whole:
        return elementwise(instruction, np.not_equal, "pred", (kind, kind))
    if name == "ne":
        unequal: Callable[[Array, Array], Array] = lambda a, b: (a < b) | (a > b)  # noqa: E731
        return elementwise(instruction, unequal, "pred", (kind, kind))
    if name not in COMPARISONS or kind not in TYPES:
        return None
    return elementwise(instruction, COMPARISONS[name], "pred", (kind, kind))
