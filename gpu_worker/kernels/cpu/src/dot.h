// The instruction that multiplies four bytes with four others and adds up their products, where a processor has one:
// AVX-512 VNNI, AVX-VNNI (Intel's since 2021 without AVX-512), ARM's dot product.
#pragma once

#include "simd.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

namespace quire {

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
