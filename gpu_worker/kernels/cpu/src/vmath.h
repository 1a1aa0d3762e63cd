// Exponential and logarithm of vectors, to about one unit in the last place (Cephes, Moshier 1989:
// the polynomials of expf and logf).
#pragma once

#include "simd.h"

namespace quire {

// 0 below -87.3 and for -inf; above 88.3 the result for 88.3. NaN stays NaN.
inline f32x16 exp(f32x16 x) {
    const i32x16 none = x < -87.3f;
    x = select(none, splat(-87.3f), x);
    x = select(x > 88.3f, splat(88.3f), x);
    f32x16 whole = x * 1.44269504f + 12582912.0f;  // rounded to an integer, in the lowest bits
    const i32x16 power = (i32x16)whole - 0x4B400000;
    whole -= 12582912.0f;
    const f32x16 rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    f32x16 poly = splat(1.9875691500e-4f);
    poly = poly * rest + 1.3981999507e-3f;
    poly = poly * rest + 8.3334519073e-3f;
    poly = poly * rest + 4.1665795894e-2f;
    poly = poly * rest + 1.6666665459e-1f;
    poly = poly * rest + 5.0000001201e-1f;
    poly = poly * rest * rest + rest + 1.0f;
    const f32x16 scaled = (f32x16)((i32x16)poly + (power << 23));
    return select(x != x, x, select(none, f32x16{}, scaled));
}

// 2^x for x <= 0, to within 2 units in the last place. 0 for very low x and for -inf. NaN stays NaN. The polynomial is
// the Taylor series of e^(f ln 2), |f| <= 1/2.
inline f32x16 exp2(f32x16 x) {
#if defined(__AVX512F__)
    x = (f32x16)_mm512_max_ps(_mm512_set1_ps(-150.0f), (__m512)x);
    const f32x16 whole = (f32x16)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    const i32x16 none = x < -126.0f;
    x = select(none, splat(-126.0f), x);
    const f32x16 shifted = x + 12582912.0f;  // rounded to an integer, in the lowest bits
    const f32x16 whole = shifted - 12582912.0f;
#endif
    const f32x16 rest = x - whole;
    f32x16 poly = splat(1.5403530e-4f);
    poly = poly * rest + 1.3333558e-3f;
    poly = poly * rest + 9.6181291e-3f;
    poly = poly * rest + 5.5504109e-2f;
    poly = poly * rest + 2.4022651e-1f;
    poly = poly * rest + 6.9314718e-1f;
    poly = poly * rest + 1.0f;
#if defined(__AVX512F__)
    return (f32x16)_mm512_scalef_ps((__m512)poly, (__m512)whole);
#else
    const f32x16 scaled = (f32x16)((i32x16)poly + (((i32x16)shifted - 0x4B400000) << 23));
    return select(x != x, x, select(none, f32x16{}, scaled));
#endif
}

// Natural logarithm of normal positive numbers.
inline f32x16 log(f32x16 x) {
    i32x16 bits = (i32x16)x;
    // The mantissa into [sqrt(1/2), sqrt(2)): near 1 the logarithm keeps its relative precision.
    const i32x16 power = (bits - 0x3F3504F3) >> 23;
    const f32x16 mantissa = (f32x16)(bits - (power << 23));
    const f32x16 whole = convert<float>(power);
    const f32x16 rest = mantissa - 1.0f;
    const f32x16 square = rest * rest;
    f32x16 poly = splat(7.0376836292e-2f);
    poly = poly * rest - 1.1514610310e-1f;
    poly = poly * rest + 1.1676998740e-1f;
    poly = poly * rest - 1.2420140846e-1f;
    poly = poly * rest + 1.4249322787e-1f;
    poly = poly * rest - 1.6668057665e-1f;
    poly = poly * rest + 2.0000714765e-1f;
    poly = poly * rest - 2.4999993993e-1f;
    poly = poly * rest + 3.3333331174e-1f;
    poly = poly * rest * square + whole * -2.12194440e-4f - 0.5f * square;
    return rest + poly + whole * 0.693359375f;
}

inline f32x16 tanh(f32x16 x) { return 1.0f - 2.0f / (exp(x * 2.0f) + 1.0f); }

}  // namespace quire
