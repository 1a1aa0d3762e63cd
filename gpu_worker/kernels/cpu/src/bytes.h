// The product of words of four bytes, activations and signed weights, as exact integers.
//
// Where an instruction wants unsigned activations, they are stored ZERO higher. Sums are then too large by ZERO times the sum
// of the weights.
#pragma once

#include "activations.h"
#include "dot.h"

namespace quire {
namespace {

#if QUIRE_DOT && !defined(__ARM_FEATURE_DOTPROD)
constexpr int ZERO = 128;
#else
constexpr int ZERO = 0;
#endif

#if defined(__AVX2__) && !defined(__AVX512BW__) && !QUIRE_DOT
#define QUIRE_AVX2_ALONE 1
#endif

struct Int8 {
    using Sum = i32x16;
    static constexpr int ZERO = quire::ZERO;
#if QUIRE_DOT
    static constexpr int PARTS = 1;
    static u32x16 part(u32x16 words, int) { return words; }
    static Sum dot(Sum sum, u32x16 weights, u32x16 x) { return quire::dot(sum, x, weights); }
#else
    static constexpr int PARTS = 2;
    static u32x16 part(u32x16 words, int number) { return two_of_four(words, number); }
    static Sum dot(Sum sum, u32x16 weights, u32x16 x) { return dot_halves(sum, weights, x); }
#endif
};

#if QUIRE_AVX2_ALONE
// The same with fewer instructions for each word of weights and more for each row: numbers get their weights' signs. Two
// products of 128 and 127 fit into 16 bits.
struct FewRows {
    using Sum = i32x16;
    static constexpr int ZERO = 0;
    static constexpr int PARTS = 1;
    static u32x16 part(u32x16 words, int) { return words; }
    static Sum dot(Sum sum, u32x16 weights, u32x16 x) {
        return by_part(
            [](auto sum, auto weights, auto x) {
                const __m256i signs = (__m256i)weights, sizes = _mm256_abs_epi8(signs);
                const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8((__m256i)x, signs));
                return added(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
            },
            sum, weights, x);
    }
};
constexpr int64_t FEW_ROWS = 8;
#else
using FewRows = Int8;
constexpr int64_t FEW_ROWS = 0;
#endif

// The product of unsigned weights and signed activations. WORDS words of each are multiplied together. Where products are
// added up in 16 bits, four of 63 and 127 fit: weights have 6 bits at most.
struct Unsigned {
    using Sum = i32x16;
    static constexpr int ZERO = 0, PARTS = 1;
#if QUIRE_DOT
    static constexpr int WORDS = 1;
    static Sum dot(Sum sum, const u32x16* weights, const u32x16* x) { return quire::dot(sum, *weights, *x); }
#else
    static constexpr int WORDS = 2;
    static Sum dot(Sum sum, const u32x16* weights, const u32x16* x) {
#if defined(__AVX512BW__)
        const __m512i first = _mm512_maddubs_epi16((__m512i)weights[0], (__m512i)x[0]);
        const __m512i second = _mm512_maddubs_epi16((__m512i)weights[1], (__m512i)x[1]);
        return settled(sum + (Sum)_mm512_madd_epi16(_mm512_add_epi16(first, second), _mm512_set1_epi16(1)));
#elif defined(__AVX2__)
        return by_part(
            [](auto sum, auto weights, auto more, auto x, auto next) {
                const __m256i first = _mm256_maddubs_epi16((__m256i)weights, (__m256i)x);
                const __m256i second = _mm256_maddubs_epi16((__m256i)more, (__m256i)next);
                return added(sum, _mm256_madd_epi16(_mm256_add_epi16(first, second), _mm256_set1_epi16(1)));
            },
            sum, weights[0], weights[1], x[0], x[1]);
#else
        i16x32 pairs = {};
        for (int word = 0; word < WORDS; ++word) {
            pairs += (i16x32)(weights[word] & 0x00FF00FF) * ((i16x32)(x[word] << 8) >> 8);
            pairs += (i16x32)(weights[word] >> 8 & 0x00FF00FF) * ((i16x32)x[word] >> 8);
        }
        return sum + ((i32x16)((u32x16)pairs << 16) >> 16) + ((i32x16)pairs >> 16);
#endif
    }
#endif
};

// The lower bytes of both halves of a word, as 16 bits with their signs.
inline uint32_t signed_halves(uint32_t word) {
    const uint32_t bytes = word & 0x00FF00FF, negative = word & 0x00800080;
    return bytes | negative * 0x1FE;
}

// Take `words` words of a row's bytes apart into Kind's PARTS.
template <class Kind>
void take_apart(uint32_t* row, int64_t words) {
    if constexpr (Kind::PARTS == 2)
        for (int64_t word = words - 1; word >= 0; --word) {
            const uint32_t bytes = row[word];
            row[2 * word + 1] = signed_halves(bytes >> 8);
            row[2 * word] = signed_halves(bytes);
        }
}

}  // namespace
}  // namespace quire
