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

// One row to bytes that are OFFSET higher, LANES at a time: what follows the last is written too. Returns
// the row's step. Without a finite step (infinity, NaN in the row) the bytes mean nothing, and no product
// with the step is finite.
template <int OFFSET, class Number>
float quantize_row(const Number* from, int64_t count, uint8_t* to) {
    u32x16 sizes = {};  // the bits of numbers without sign are in order, NaN above all
    for (int64_t at = 0; at < count; at += LANES) {
        const u32x16 bits = (u32x16)load_part(from + at, count - at) & 0x7FFFFFFF;
        sizes = (u32x16)select(bits > sizes, (f32x16)bits, (f32x16)sizes);
    }
    uint32_t size = 0;
    for (int lane = 0; lane < LANES; ++lane) size = sizes[lane] > size ? sizes[lane] : size;
    float largest;
    std::memcpy(&largest, &size, sizeof(largest));
    if (largest < 1e-30f) largest = 0;  // its inverse would be infinite
    const float inverse = largest == 0 ? 0 : 127 / largest;
    for (int64_t at = 0; at < count; at += LANES) {
        // Adding 1.5 * 2^23 rounds to a whole number, which is then in the lowest bits.
        const f32x16 rounded = load_part(from + at, count - at) * inverse + 12582912.0f;
        const u8x16 bytes = low_bytes((u32x16)rounded + OFFSET);
        std::memcpy(to + at, &bytes, sizeof(bytes));
    }
    return largest / 127;
}

}  // namespace quire
