// Rows of numbers as whole multiples, -127 to 127, of the row's step.
#pragma once

#include "simd.h"

namespace quire {

template <class Number>
f32x16 load_part(const Number* from, int64_t count) {
    if (count >= LANES) return load(from);
    Number part[LANES] = {};
    std::memcpy(part, from, count * sizeof(Number));
    return load(part);
}

// The larger of the bits of numbers, without their signs: those are in order, NaN above all.
template <class Number>
u32x16 larger(u32x16 sizes, Number numbers) {
    const u32x16 bits = (u32x16)numbers & 0x7FFFFFFF;
#if defined(__AVX512F__)
    return (u32x16)_mm512_max_epu32((__m512i)sizes, (__m512i)bits);
#else
    return (u32x16)select(bits > sizes, (f32x16)bits, (f32x16)sizes);
#endif
}

// The step of numbers of which `sizes` are the largest, and what multiplies them to be whole. Without a finite
// step (infinity, NaN among the numbers) what is made of them means nothing, and no product with it is finite.
struct Steps {
    float step, inverse;

    explicit Steps(u32x16 sizes) {
        sizes = larger(sizes, shifted<8>((f32x16)sizes));
        sizes = larger(sizes, shifted<4>((f32x16)sizes));
        sizes = larger(sizes, shifted<2>((f32x16)sizes));
        float largest = ((f32x16)larger(sizes, shifted<1>((f32x16)sizes)))[0];
        if (largest < 1e-30f) largest = 0;  // its inverse would be infinite
        step = largest / 127;
        inverse = largest == 0 ? 0 : 127 / largest;
    }

    // Adding 1.5 * 2^23 rounds to a whole number, which is then in the lowest bits.
    static constexpr float ROUNDS = 12582912.0f;
    f32x16 rounded(f32x16 numbers) const { return numbers * inverse + ROUNDS; }
};

// One row to bytes that are OFFSET higher, LANES at a time: what follows the last is written too. Returns
// the row's step.
template <int OFFSET, class Number>
float quantize_row(const Number* from, int64_t count, uint8_t* to) {
    u32x16 sizes = {};
    for (int64_t at = 0; at < count; at += LANES) sizes = larger(sizes, load_part(from + at, count - at));
    const Steps steps(sizes);
    for (int64_t at = 0; at < count; at += LANES) {
        const u8x16 bytes = low_bytes((u32x16)steps.rounded(load_part(from + at, count - at)) + OFFSET);
        std::memcpy(to + at, &bytes, sizeof(bytes));
    }
    return steps.step;
}

}  // namespace quire
