// Products of words of whole numbers: of two with 16 bits each, and of four bytes, where a processor has an instruction for
// that: AVX-512 VNNI, AVX-VNNI (Intel's since 2021 without AVX-512), ARM's dot product.
#pragma once

#include "simd.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace quire {

#if defined(__AVX2__) && !defined(__AVX512BW__)
// sum + number, in the sum's own register. A compiler takes another one, and copies: the number of instructions limits
// products.
inline Register<int32_t> added(Register<int32_t> sum, __m256i number) {
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(number));
    return sum;
}
#endif

// sum + the products of both halves of each lane, signed numbers of 16 bits.
inline i32x16 dot_halves(i32x16 sum, u32x16 one, u32x16 other) {
#if defined(__AVX512VNNI__)
    return (i32x16)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)one, (__m512i)other);
#elif defined(__AVX512BW__)
    return settled(sum + (i32x16)_mm512_madd_epi16((__m512i)one, (__m512i)other));
#elif defined(__AVXVNNI__)
    return by_part(
        [](auto sum, auto one, auto other) {
            return (Register<int32_t>)_mm256_dpwssd_epi32((__m256i)sum, (__m256i)one, (__m256i)other);
        },
        sum, one, other);
#elif defined(__AVX2__)
    return by_part([](auto sum, auto one, auto other) { return added(sum, _mm256_madd_epi16((__m256i)one, (__m256i)other)); },
                   sum, one, other);
#elif defined(__SSE2__)
    return settled(sum + by_part([](auto one, auto other) { return (Register<int32_t>)_mm_madd_epi16((__m128i)one, (__m128i)other); },
                                 one, other));
#else
    const i32x16 first = ((i32x16)(one << 16) >> 16) * ((i32x16)(other << 16) >> 16);
    return sum + first + ((i32x16)one >> 16) * ((i32x16)other >> 16);
#endif
}

// Two bytes of each word with their signs, as 16 bits: the first and the third, or the others.
inline u32x16 two_of_four(u32x16 words, int part) { return (u32x16)((part ? (i16x32)words : (i16x32)words << 8) >> 8); }

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
#define QUIRE_DOT 1

// sum + the products of the bytes of each lane. Those of `first` are unsigned, on ARM signed; those of `second` signed.
inline i32x16 dot(i32x16 sum, u32x16 first, u32x16 second) {
#if defined(__AVX512VNNI__)
    return (i32x16)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)first, (__m512i)second);
#else
    return by_part(
        [](auto sum, auto first, auto second) {
#if defined(__AVXVNNI__)
            return (Register<int32_t>)_mm256_dpbusd_epi32((__m256i)sum, (__m256i)first, (__m256i)second);
#else
            return (Register<int32_t>)vdotq_s32((int32x4_t)sum, (int8x16_t)first, (int8x16_t)second);
#endif
        },
        sum, first, second);
#endif
}
#endif

}  // namespace quire
