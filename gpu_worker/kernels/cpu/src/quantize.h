// Quantization of rows to int8: whole numbers, -127 to 127, and a scale for each row.
#pragma once

#include <array>

#include "swap.h"

namespace quire {

template <class Number>
f32x16 load_part(const Number* from, int64_t count) {
    if (count >= LANES) return load(from);
    Number part[LANES] = {};
    std::memcpy(part, from, count * sizeof(Number));
    return load(part);
}

// The larger of absolute values, compared as bits: the order is the same, and NaN is the largest.
template <class Number>
u32x16 larger(u32x16 sizes, Number numbers) {
    const u32x16 bits = (u32x16)numbers & 0x7FFFFFFF;
#if defined(__AVX512F__)
    return (u32x16)_mm512_max_epu32((__m512i)sizes, (__m512i)bits);
#elif defined(__AVX2__)
    return by_part([](auto one, auto other) { return (Register<uint32_t>)_mm256_max_epu32((__m256i)one, (__m256i)other); },
                   sizes, bits);
#else
    return (u32x16)select(bits > sizes, (f32x16)bits, (f32x16)sizes);
#endif
}

// Adding 1.5 * 2^23 rounds to a whole number, which the lowest bits of the sum hold.
constexpr float ROUNDS = 12582912.0f;
inline i32x16 whole(f32x16 numbers) { return (i32x16)(numbers + ROUNDS) - (i32x16)splat(ROUNDS); }

constexpr float SMALLEST = 1e-30f;  // the inverse of a smaller scale might be infinite

// The scale of numbers whose largest absolute values, as bits, are `sizes`, where the largest becomes `most`. If a number is
// infinite or NaN, the scale is not finite, so that no product with the row is finite, and the quantized numbers mean nothing.
struct Scale {
    float scale, inverse;

    explicit Scale(u32x16 sizes, float most = 127) {
        const uint32_t bits = folded(sizes, [](auto one, auto other) {
            const auto more = (decltype(one))(one > other);
            return (decltype(one))((more & one) | (~more & other));
        });
        float largest;
        std::memcpy(&largest, &bits, sizeof(largest));
        if (largest < SMALLEST) largest = 0;
        scale = largest / most;
        inverse = largest == 0 ? 0 : most / largest;
    }

    // A scale that the numbers had before: they are whole multiples of it, from -128 to 127.
    explicit Scale(float given) : scale(given), inverse(given == 0 ? 0 : 1 / given) {}

    f32x16 rounded(f32x16 numbers) const { return numbers * inverse + ROUNDS; }
};

// Sums of numbers whose places differ in the bit DISTANCE; where a place has this bit, differences.
template <int DISTANCE>
inline f32x16 sums_and_differences(f32x16 numbers) {
    static constexpr auto SIGNS = [] {
        std::array<float, LANES> signs{};
        for (int place = 0; place < LANES; ++place) signs[place] = place & DISTANCE ? -1.0f : 1.0f;
        return signs;
    }();
    return swapped<DISTANCE>(numbers) + numbers * load(SIGNS.data());
}

// LANES numbers times the Hadamard matrix, which is its own inverse. It leaves products of two vectors as they are. A number
// that is much larger than the others becomes LANES numbers of a quarter of its size: see "QuaRot" (Ashkboos et al., 2024).
inline f32x16 rotated(f32x16 numbers) {
    numbers = sums_and_differences<1>(numbers);
    numbers = sums_and_differences<2>(numbers);
    numbers = sums_and_differences<4>(numbers);
    return sums_and_differences<8>(numbers) * 0.25f;
}

// Quantize one row, LANES numbers at a time: bytes after the last number are written too. Bytes are numbers + OFFSET.
// `rotates`: each LANES numbers are rotated before; those of the end that are fewer are not. Returns the row's scale, which is
// `given`, if it is not null.
template <int OFFSET, class Number>
float quantize_row(const Number* from, int64_t count, uint8_t* to, const float* given = nullptr, bool rotates = false) {
    const auto read = [&](int64_t at) {
        const f32x16 numbers = load_part(from + at, count - at);
        return rotates && at + LANES <= count ? rotated(numbers) : numbers;
    };
    u32x16 sizes = {};
    if (!given)
        for (int64_t at = 0; at < count; at += LANES) sizes = larger(sizes, read(at));
    const Scale scale = given ? Scale(*given) : Scale(sizes);
    for (int64_t at = 0; at < count; at += LANES) {
        const u8x16 bytes = low_bytes((u32x16)scale.rounded(read(at)) + OFFSET);
        store_bits(to + at, bytes);
    }
    return scale.scale;
}

}  // namespace quire
