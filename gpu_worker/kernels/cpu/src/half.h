// float16: a sign, 5 bits of exponent, 10 of fraction.
#pragma once

#include "simd.h"

namespace quire {

// Factor that corrects the exponent of a float32 made of the bits of a float16: their biases differ.
constexpr float REBIASED = 0x1p112f;

inline f32x16 from_halves(u16x16 halves) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_cvtph_ps((__m256i)halves);
#elif defined(__F16C__)
    return by_part([](auto part) { return (Register<float>)_mm256_cvtph_ps((__m128i)part); }, halves);
#else
    const u32x16 bits = convert<uint32_t>(halves);
    const f32x16 size = (f32x16)((bits & 0x7FFF) << 13) * REBIASED;
    const u32x16 beyond = (u32x16)((bits & 0x7C00) == 0x7C00);  // infinity and NaN
    return (f32x16)((u32x16)size | (bits & 0x8000) << 16 | (beyond & 0x7F800000));
#endif
}

// Rounds to the nearest, ties to even. NaN stays NaN.
inline uint16_t to_half(float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    const uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFF;
    if (bits > 0x7F800000) return uint16_t(sign | 0x7E00);
    if (bits >= 0x47800000) return uint16_t(sign | 0x7C00);  // from 2^16 on: infinity; smaller numbers that round to 2^16 become infinity below
    if (bits >= 0x38800000) return uint16_t(sign | (bits + 0xFFF + (bits >> 13 & 1) - 0x38000000) >> 13);
    float small;  // below 2^-14 float16 are as far apart as float32 from 1/2 on
    std::memcpy(&small, &bits, sizeof(small));
    small += 0.5f;
    std::memcpy(&bits, &small, sizeof(bits));
    return uint16_t(sign | (bits - 0x3F000000));
}

inline float from_half(uint16_t half) { return from_halves(u16x16{} + half)[0]; }

}  // namespace quire
