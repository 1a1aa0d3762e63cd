"""What the bits of registers stand for, as arrays: decoded to compute with, encoded to be kept.

A register is an array of unsigned integers of its width, an entry for each thread. Of bfloat16, which NumPy
does not know, the value is a float32; of two numbers in a register, an array [threads, 2], the low one first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

UNSIGNED = {1: np.dtype(np.bool_)} | {bits: np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)}


@dataclass(frozen=True)
class Type:
    name: str
    bits: int
    decode: Callable[[Array], Array]
    """Of unsigned integers of `bits`."""
    encode: Callable[[Array], Array]
    """To unsigned integers of `bits`."""
    signed: bool = False

    def of(self, bits: Array) -> Array:
        """The value of a register, of whose bits it may have the lower ones."""
        own = UNSIGNED[self.bits]
        return self.decode(bits if bits.dtype == own else bits.astype(own))

    def to(self, value: Array, width: int) -> Array:
        """Bits for a register of `width`, which may be wider."""
        bits = self.encode(value)
        if width == self.bits:
            return bits
        return extend(bits, width) if self.signed else bits.astype(UNSIGNED[width])


def extend(bits: Array, width: int) -> Array:
    """With copies of the sign."""
    signed: Array = bits.view(f"i{bits.itemsize}").astype(f"i{width // 8}")
    return signed.view(UNSIGNED[width])


def from_bf16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bf16(value: Array) -> Array:
    """To the nearest, ties to even. A NaN is 0x7FFF, as the conversion of a GPU gives it."""
    value = np.ascontiguousarray(value, np.float32)
    bits = value.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FFF), rounded).astype(np.uint16)


def odd(value: Array) -> Array:
    """float64 as float32, cut off, with the last bit set if anything is lost.

    What is rounded from that to fewer bits is rounded once.
    """
    near = value.astype(np.float32)
    bits = near.view(np.uint32)
    away = np.abs(near) > np.abs(value)
    lost = (near != value) & ~np.isnan(value)
    return np.where(lost, (bits - away.astype(np.uint32)) | np.uint32(1), bits).view(np.float32)


def _viewed(name: str, bits: int, dtype: str, signed: bool = False) -> Type:
    own, to = UNSIGNED[bits], np.dtype(dtype)

    def encode(value: Array) -> Array:
        return np.ascontiguousarray(value, to).view(own)

    return Type(name, bits, lambda bits: bits.view(to), encode, signed)


def _pair(one: Type) -> Type:
    half = UNSIGNED[one.bits]

    def decode(bits: Array) -> Array:
        return one.decode(np.ascontiguousarray(bits).view(half).reshape(-1, 2))

    def encode(value: Array) -> Array:
        return np.ascontiguousarray(one.encode(value)).view(UNSIGNED[2 * one.bits]).reshape(-1)

    return Type(one.name + "x2", 2 * one.bits, decode, encode)


def _itself(bits: Array) -> Array:
    return bits


TYPES = {
    each.name: each
    for each in (
        Type("pred", 1, _itself, _itself),
        *(Type(f"{kind}{bits}", bits, _itself, _itself) for kind in "bu" for bits in (8, 16, 32, 64)),
        *(_viewed(f"s{bits}", bits, f"i{bits // 8}", True) for bits in (8, 16, 32, 64)),
        *(_viewed(f"f{bits}", bits, f"f{bits // 8}") for bits in (16, 32, 64)),
        Type("bf16", 16, from_bf16, to_bf16),
    )
}
TYPES |= {name + "x2": _pair(TYPES[name]) for name in ("f16", "bf16", "s16", "u16")}


def _e4m3() -> Array:
    """What each byte is worth: a sign, 4 bits of exponent, 3 of fraction."""
    codes = np.arange(256)
    exponents, fractions = codes >> 3 & 15, codes & 7
    sizes = np.where(
        exponents == 0, fractions * 2.0**-9, (8 + fractions) * 2.0 ** (exponents.astype(float) - 10)
    )
    sizes[codes & 0x7F == 0x7F] = np.nan
    return np.where(codes < 128, sizes, -sizes).astype(np.float32)


E4M3 = _e4m3()


def to_e4m3(value: Array) -> Array:
    """To the nearest, ties to even; what is beyond 448 becomes 448."""
    sizes, wanted = E4M3[:127].astype(np.float64), np.minimum(np.abs(value.astype(np.float64)), 448.0)
    above = np.searchsorted(sizes, wanted)
    below = np.maximum(above - 1, 0)
    up, down = sizes[np.minimum(above, 126)] - wanted, wanted - sizes[below]
    codes = np.where((up < down) | ((up == down) & (above % 2 == 0)), above, below)
    codes = np.where(np.isnan(value), 0x7F, codes)
    return (codes | np.where(np.signbit(value), 0x80, 0)).astype(np.uint8)
