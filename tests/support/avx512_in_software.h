// What the kernels use of AVX-512 in software, for processors without it: its instructions by the definitions of Intel's
// manual, lane by lane. Included before the kernels' sources (`-include`).
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
#define __AVX512DQ__ 1
#define __AVX512VNNI__ 1
#define __AVX512VBMI__ 1
#define __AVX512BF16__ 1

namespace in_software {

using Bits = __m512i;

template <class Number, class Vector>
auto lanes(const Vector& vector) {
    return std::bit_cast<std::array<Number, sizeof(Vector) / sizeof(Number)>>(vector);
}

// The vector whose lanes are `number(lane)`.
template <class Number, class Vector = Bits, class Of>
Vector made(const Of& number) {
    std::array<Number, sizeof(Vector) / sizeof(Number)> found;
    for (size_t lane = 0; lane < found.size(); ++lane) found[lane] = Number(number(lane));
    return std::bit_cast<Vector>(found);
}

// Each lane of a vector, or two of them.
template <class Number, class Vector, class Of>
Vector each(const Of& of, const Vector& one, const Vector& other) {
    const auto first = lanes<Number>(one), second = lanes<Number>(other);
    return made<Number, Vector>([&](size_t lane) { return of(first[lane], second[lane]); });
}

// A bit for each lane.
template <class Number>
uint64_t common_bits(Bits one, Bits other) {
    const auto first = lanes<Number>(one), second = lanes<Number>(other);
    uint64_t bits = 0;
    for (size_t lane = 0; lane < first.size(); ++lane) bits |= uint64_t((first[lane] & second[lane]) != 0) << lane;
    return bits;
}

template <class Number>
Number saturated(int64_t number) {
    using Limits = std::numeric_limits<Number>;
    return Number(std::clamp<int64_t>(number, Limits::min(), Limits::max()));
}

// Numbers of half the bits: within 128 bits, those of one vector and then those of the other.
template <class Number, class Half>
Bits packed(Bits one, Bits other) {
    constexpr size_t EACH = 16 / sizeof(Number);
    const auto first = lanes<Number>(one), second = lanes<Number>(other);
    return made<Half>([&](size_t lane) {
        const size_t place = lane / (2 * EACH) * EACH + lane % EACH;
        return saturated<Half>(lane % (2 * EACH) < EACH ? first[place] : second[place]);
    });
}

// Lanes of two vectors, by their places.
template <class Place, class Number, class Vector>
Vector permuted(Bits places, const Vector& one, const Vector& other) {
    const auto from = lanes<Place>(places);
    const auto first = lanes<Number>(one), second = lanes<Number>(other);
    return made<Number, Vector>([&](size_t lane) {
        const size_t place = from[lane] % (2 * first.size());
        return place < first.size() ? first[place] : second[place - first.size()];
    });
}

// In each lane of Sum the products of COUNT numbers of both vectors.
template <class Sum, class A, class B, class Of>
Bits products(Bits one, Bits other, const Of& of) {
    constexpr size_t COUNT = sizeof(Sum) / sizeof(A);
    const auto first = lanes<A>(one);
    const auto second = lanes<B>(other);
    return made<Sum>([&](size_t lane) {
        int64_t sum = 0;
        for (size_t at = lane * COUNT; at < (lane + 1) * COUNT; ++at) sum += int64_t(first[at]) * second[at];
        return of(lane, sum);
    });
}
template <class A, class B>
Bits added_products(Bits sums, Bits one, Bits other) {
    const auto before = lanes<int32_t>(sums);
    return products<int32_t, A, B>(one, other, [&](size_t lane, int64_t sum) { return before[lane] + sum; });
}

template <class Vector, class Number>
Vector loaded(const Number* from) {
    Vector vector;
    std::memcpy(&vector, from, sizeof(vector));
    return vector;
}

inline float normal(float number) { return std::fabs(number) < FLT_MIN ? 0 * number : number; }
inline float from_bfloat16(uint16_t bits) { return normal(std::bit_cast<float>(uint32_t(bits) << 16)); }

// The second numbers of pairs are added first.
inline __m512 added_pairs(__m512 sums, Bits one, Bits other) {
    const auto before = lanes<float>(sums);
    const auto first = lanes<uint16_t>(one), second = lanes<uint16_t>(other);
    return made<float, __m512>([&](size_t lane) {
        float sum = normal(before[lane]);
        for (size_t at : {2 * lane + 1, 2 * lane}) sum = normal(sum + from_bfloat16(first[at]) * from_bfloat16(second[at]));
        return sum;
    });
}

// Rounded to the nearest, ties to even.
inline __m256i to_bfloat16(__m512 numbers) {
    const auto from = lanes<float>(numbers);
    return made<uint16_t, __m256i>([&](size_t lane) {
        const uint32_t bits = std::bit_cast<uint32_t>(normal(from[lane]));
        return std::isnan(from[lane]) ? bits >> 16 | 0x40 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    });
}

template <class To, class From, class Vector, class Source>
Vector converted(const Source& source) {
    const auto from = lanes<From>(source);
    return made<To, Vector>([&](size_t lane) { return To(from[lane]); });
}

template <int TABLE>
Bits by_table(Bits first, Bits second, Bits third) {
    const auto one = lanes<uint64_t>(first), two = lanes<uint64_t>(second), three = lanes<uint64_t>(third);
    return made<uint64_t>([&](size_t lane) {
        uint64_t found = 0;
        for (int row = 0; row < 8; ++row)
            if (TABLE >> row & 1)
                found |= (row & 4 ? one[lane] : ~one[lane]) & (row & 2 ? two[lane] : ~two[lane]) & (row & 1 ? three[lane] : ~three[lane]);
        return found;
    });
}

inline Bits shuffled(Bits numbers, Bits places) {
    const auto from = lanes<uint8_t>(numbers), place = lanes<uint8_t>(places);
    return made<uint8_t>([&](size_t lane) { return place[lane] & 128 ? 0 : from[lane / 16 * 16 + place[lane] % 16]; });
}

inline Bits chosen(Bits otherwise, uint64_t mask, Bits numbers) {
    const auto no = lanes<uint16_t>(otherwise), yes = lanes<uint16_t>(numbers);
    return made<uint16_t>([&](size_t lane) { return mask >> lane & 1 ? yes[lane] : no[lane]; });
}
inline void store_chosen(void* to, uint64_t mask, Bits numbers) {
    const auto from = lanes<uint16_t>(numbers);
    for (size_t lane = 0; lane < from.size(); ++lane)
        if (mask >> lane & 1) std::memcpy(static_cast<uint16_t*>(to) + lane, &from[lane], sizeof(from[lane]));
}

template <class Number, class Vector = Bits>
Vector same(Number number) {
    return made<Number, Vector>([&](size_t) { return number; });
}

}  // namespace in_software

// Names of functions, because their own need a processor that has the instructions.
#define QUIRE_EACH(Number, formula, ...) \
    in_software::each<Number>([&]([[maybe_unused]] auto a, [[maybe_unused]] auto b) { return formula; }, __VA_ARGS__)

#define _mm512_set1_epi8(number) in_software::same<int8_t>(number)
#define _mm512_set1_epi16(number) in_software::same<int16_t>(number)
#define _mm512_set1_epi32(number) in_software::same<int32_t>(number)
#define _mm512_set1_ps(number) in_software::same<float, __m512>(number)
#define _mm512_load_si512(from) in_software::loaded<__m512i>(from)
#define _mm512_loadu_si512(from) in_software::loaded<__m512i>(from)
#define _mm512_loadu_ps(from) in_software::loaded<__m512>(from)
#define _mm256_loadu_si256(from) in_software::loaded<__m256i>(from)
#define _mm512_storeu_si512(to, bits) ([](void* at, __m512i from) { std::memcpy(at, &from, sizeof(from)); }(to, bits))
#define _mm512_mask_storeu_epi16(to, mask, bits) in_software::store_chosen(to, mask, bits)
#define _mm512_add_epi8(one, other) QUIRE_EACH(uint8_t, a + b, one, other)
#define _mm512_add_epi16(one, other) QUIRE_EACH(uint16_t, a + b, one, other)
#define _mm512_and_si512(one, other) QUIRE_EACH(uint64_t, a & b, one, other)
#define _mm512_srai_epi16(bits, count) QUIRE_EACH(int16_t, a >> (count), bits, bits)
#define _mm512_srli_epi16(bits, count) QUIRE_EACH(uint16_t, a >> (count), bits, bits)
#define _mm512_max_ps(one, other) QUIRE_EACH(float, a > b ? a : b, one, other)
#define _mm512_max_epu32(one, other) QUIRE_EACH(uint32_t, std::max(a, b), one, other)
#define _mm512_roundscale_ps(numbers, how) QUIRE_EACH(float, std::nearbyint(a), numbers, numbers)
#define _mm512_scalef_ps(one, other) QUIRE_EACH(float, std::isnan(b) ? b : std::scalbn(a, int(std::floor(b))), one, other)
#define _mm512_packs_epi32(one, other) in_software::packed<int32_t, int16_t>(one, other)
#define _mm512_packs_epi16(one, other) in_software::packed<int16_t, int8_t>(one, other)
#define _mm512_permutexvar_epi8(places, bits) in_software::permuted<uint8_t, uint8_t>(places, bits, bits)
#define _mm512_permutexvar_epi32(places, bits) in_software::permuted<uint32_t, uint32_t>(places, bits, bits)
#define _mm512_permutexvar_ps(places, numbers) in_software::permuted<uint32_t, float>(places, numbers, numbers)
#define _mm512_permutex2var_ps(one, places, other) in_software::permuted<uint32_t, float>(places, one, other)
#define _mm512_mask_permutexvar_epi16(otherwise, mask, places, bits) \
    in_software::chosen(otherwise, mask, in_software::permuted<uint16_t, uint16_t>(places, bits, bits))
#define _mm512_shuffle_epi8(bits, places) in_software::shuffled(bits, places)
#define _mm512_broadcast_i32x4(bits) \
    in_software::made<uint32_t>([from = in_software::lanes<uint32_t>(__m128i(bits))](size_t lane) { return from[lane % 4]; })
#define _mm512_zextsi256_si512(bits) \
    in_software::made<uint32_t>([from = in_software::lanes<uint32_t>(__m256i(bits))](size_t lane) { return lane < 8 ? from[lane] : 0; })
#define _mm512_ternarylogic_epi64(one, two, three, table) in_software::by_table<table>(one, two, three)
#define _mm512_testn_epi8_mask(one, other) (~in_software::common_bits<uint8_t>(one, other))
#define _mm512_testn_epi16_mask(one, other) (~in_software::common_bits<uint16_t>(one, other))
#define _mm512_test_epi32_mask(one, other) in_software::common_bits<uint32_t>(one, other)
#define _mm512_madd_epi16(one, other) \
    in_software::products<int32_t, int16_t, int16_t>(one, other, [](size_t, int64_t sum) { return sum; })
#define _mm512_maddubs_epi16(one, other) \
    in_software::products<int16_t, uint8_t, int8_t>(one, other, [](size_t, int64_t sum) { return in_software::saturated<int16_t>(sum); })
#define _mm512_dpwssd_epi32(sums, one, other) in_software::added_products<int16_t, int16_t>(sums, one, other)
#define _mm512_dpbusd_epi32(sums, one, other) in_software::added_products<uint8_t, int8_t>(sums, one, other)
#define _mm512_dpbf16_ps(sums, one, other) in_software::added_pairs(sums, (__m512i)(one), (__m512i)(other))
#define _mm512_cvtneps_pbh(numbers) in_software::to_bfloat16(numbers)
#define _mm512_cvtph_ps(halves) in_software::converted<float, _Float16, __m512>(__m256i(halves))
#define _mm512_cvtepu16_epi32(halves) in_software::converted<uint32_t, uint16_t, __m512i>(__m256i(halves))
#define _mm512_cvtepi8_epi32(bytes) in_software::converted<int32_t, int8_t, __m512i>(__m128i(bytes))
#define _mm256_cvtepi8_epi16(bytes) in_software::converted<int16_t, int8_t, __m256i>(__m128i(bytes))
#define _mm512_cvtepi32_epi8(words) in_software::converted<uint8_t, uint32_t, __m128i>(__m512i(words))
