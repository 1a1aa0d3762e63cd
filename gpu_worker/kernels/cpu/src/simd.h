// SIMD vectors of 16 lanes for any machine. The compiler maps them to registers (one of AVX-512, two of AVX2, four of
// SSE or NEON). Instructions that the compiler does not generate from them (products of bfloat16 and of bytes) are
// intrinsics under #if in the kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire {

constexpr int LANES = 16;

using f32x16 = float __attribute__((vector_size(64)));
using i32x16 = int32_t __attribute__((vector_size(64)));
using u32x16 = uint32_t __attribute__((vector_size(64)));
using u16x16 = uint16_t __attribute__((vector_size(32)));
using u8x16 = uint8_t __attribute__((vector_size(16)));
using i8x16 = int8_t __attribute__((vector_size(16)));

// bfloat16: the upper half of a float32.
struct bf16 {
    uint16_t bits;
};

template <class Vector, class Number>
inline Vector load_bits(const Number* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof(vector));
    return vector;
}

inline f32x16 widen(u16x16 halves) {
#if defined(__AVX512F__)
    return (f32x16)((u32x16)_mm512_cvtepu16_epi32((__m256i)halves) << 16);
#else
    return (f32x16)(__builtin_convertvector(halves, u32x16) << 16);
#endif
}

// Intrinsics, because compilers convert the bytes one by one.
inline i32x16 to_words(i8x16 bytes) {
#if defined(__AVX512F__)
    return (i32x16)_mm512_cvtepi8_epi32((__m128i)bytes);
#elif defined(__AVX2__)
    const __m256i halves[2] = {_mm256_cvtepi8_epi32((__m128i)bytes),
                               _mm256_cvtepi8_epi32(_mm_srli_si128((__m128i)bytes, 8))};
    return load_bits<i32x16>(halves);
#else
    return __builtin_convertvector(bytes, i32x16);
#endif
}

// The lowest byte of each lane.
inline u8x16 low_bytes(u32x16 words) {
#if defined(__AVX512F__)
    return (u8x16)_mm512_cvtepi32_epi8((__m512i)words);
#else
    return __builtin_convertvector(words & 0xFF, u8x16);
#endif
}

// Rounds to the nearest, ties to even. NaN stays NaN.
inline u16x16 narrow(f32x16 wide) {
#if defined(__AVX512BF16__)
    return (u16x16)_mm512_cvtneps_pbh((__m512)wide);
#else
    const u32x16 bits = (u32x16)wide;
    const u32x16 rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const u32x16 quiet = (bits >> 16) | 0x40;
    const i32x16 is_nan = wide != wide;
    return __builtin_convertvector((u32x16)((u32x16)is_nan & quiet) | (~(u32x16)is_nan & rounded), u16x16);
#endif
}

inline f32x16 load(const float* from) { return load_bits<f32x16>(from); }
inline f32x16 load(const bf16* from) { return widen(load_bits<u16x16>(from)); }

inline f32x16 load(const int8_t* from) { return __builtin_convertvector(to_words(load_bits<i8x16>(from)), f32x16); }

inline void store(float* to, f32x16 vector) { std::memcpy(to, &vector, sizeof(vector)); }
inline void store(bf16* to, f32x16 vector) {
    const u16x16 halves = narrow(vector);
    std::memcpy(to, &halves, sizeof(halves));
}

inline float to_float(float number) { return number; }
inline float to_float(bf16 number) {
    const uint32_t bits = uint32_t(number.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

inline void from_float(float* to, float number) { *to = number; }
inline void from_float(bf16* to, float number) {
    uint32_t bits;
    std::memcpy(&bits, &number, sizeof(bits));
    const uint32_t rounded = number == number ? bits + 0x7FFF + ((bits >> 16) & 1) : bits | 0x400000;
    to->bits = uint16_t(rounded >> 16);
}

inline f32x16 splat(float number) { return f32x16{} + number; }

inline f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) {
    return (f32x16)((mask & (i32x16)yes) | (~mask & (i32x16)no));
}

// The greater of each pair of lanes. NaN if the lane of `other` is NaN.
inline f32x16 greater(f32x16 one, f32x16 other) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_max_ps((__m512)one, (__m512)other);
#endif
    const i32x16 more = one > other;
    return (f32x16)((more & (i32x16)one) | (~more & (i32x16)other));
}

// Rotates lanes: lane i of the result is lane (i + DISTANCE) % 16.
template <int DISTANCE>
inline f32x16 shifted(f32x16 v) {
    return __builtin_shufflevector(v, v, DISTANCE % 16, (1 + DISTANCE) % 16, (2 + DISTANCE) % 16, (3 + DISTANCE) % 16,
                                   (4 + DISTANCE) % 16, (5 + DISTANCE) % 16, (6 + DISTANCE) % 16, (7 + DISTANCE) % 16,
                                   (8 + DISTANCE) % 16, (9 + DISTANCE) % 16, (10 + DISTANCE) % 16,
                                   (11 + DISTANCE) % 16, (12 + DISTANCE) % 16, (13 + DISTANCE) % 16,
                                   (14 + DISTANCE) % 16, (15 + DISTANCE) % 16);
}

inline float sum(f32x16 v) {
    v += shifted<8>(v);
    v += shifted<4>(v);
    v += shifted<2>(v);
    v += shifted<1>(v);
    return v[0];
}

inline float maximum(f32x16 v) {
    v = greater(v, shifted<8>(v));
    v = greater(v, shifted<4>(v));
    v = greater(v, shifted<2>(v));
    v = greater(v, shifted<1>(v));
    return v[0];
}

}  // namespace quire
