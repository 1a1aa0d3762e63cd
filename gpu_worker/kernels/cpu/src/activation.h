// Activations of 16 numbers at a time.
#pragma once

#include "simd.h"

namespace quire {

enum class Activation : int32_t { none, silu, gelu_tanh, gelu };

// e^x to within 2 units in the last place; 0 below the normal numbers, infinity from e^88. NaN stays
// NaN. x = n ln 2 + r: 2^n is made of bits, e^r is its Taylor series, |r| <= ln 2 / 2.
inline f32x16 exponential(f32x16 x) {
    const f32x16 shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to a whole number
    const f32x16 n = shifted - 12582912.0f;
    const f32x16 r = x - n * 0.693359375f + n * 2.12194440e-4f;
    f32x16 series = splat(1.0f / 5040);
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r + 1.0f;
    series = series * r + 1.0f;
    const i32x16 exponent = ((i32x16)shifted - 0x4B400000) << 23;
    f32x16 power = (f32x16)((i32x16)series + exponent);
    power = select(x < -87.3f, splat(0.0f), power);
    power = select(x > 88.0f, splat(INFINITY), power);
    return select(x != x, x, power);
}

inline f32x16 sigmoid(f32x16 x) { return 1.0f / (1.0f + exponential(-x)); }

inline f32x16 activate(Activation activation, f32x16 x) {
    switch (activation) {
        case Activation::silu:
            return x * sigmoid(x);
        case Activation::gelu_tanh:  // (1 + tanh y) / 2 = sigmoid 2y
            return x * sigmoid(2 * 0.7978845608f * (x + 0.044715f * x * x * x));
        case Activation::gelu:
            for (int lane = 0; lane < LANES; ++lane)
                x[lane] *= 0.5f * (1.0f + std::erf(x[lane] * 0.7071067812f));
            return x;
        case Activation::none:
            break;
    }
    return x;
}

}  // namespace quire
