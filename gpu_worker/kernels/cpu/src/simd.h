// SIMD vectors of 16 lanes for any machine: one register of AVX-512, or pairs of the machine's own registers (two of
// AVX2, four of SSE or NEON). A pair is a struct, so that the compiler keeps its parts in registers. A generic vector
// that is longer than a register it takes apart through memory. Instructions that compilers do not generate from
// vectors (products of bfloat16 and of bytes) are intrinsics under #if in the kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire {

constexpr int LANES = 16;

// Lanes of 32 bits in a register, and how many vectors of 16 lanes are held in registers while products are added up:
// half as many again are left for factors.
#if defined(__AVX512F__)
constexpr int PART = 16, SUMS = 24;
#elif defined(__AVX2__)
constexpr int PART = 8, SUMS = 6;
#elif defined(__aarch64__)
constexpr int PART = 4, SUMS = 6;
#else
constexpr int PART = 4, SUMS = 3;
#endif

// A register with PART lanes, each of EACH numbers; of numbers of fewer bits, a part of a register.
template <class Number, int EACH>
struct RegisterOf {
    typedef Number type __attribute__((vector_size(sizeof(Number) * PART * EACH)));
};
template <class Number, int EACH = 1>
using Register = typename RegisterOf<Number, EACH>::type;

// Twice the lanes of V. Operators work on the parts; see `by_part` for functions.
template <class V>
struct Pair {
    V low, high;

    // The same bits as numbers of another type.
    template <class W>
    explicit operator Pair<W>() const {
        return {(W)low, (W)high};
    }
    auto operator[](int lane) const {
        constexpr int HALF = sizeof(V) / sizeof(low[0]);
        return lane < HALF ? low[lane] : high[lane - HALF];
    }
};

template <class V>
struct IsPair : std::false_type {};
template <class V>
struct IsPair<Pair<V>> : std::true_type {};

template <class V>
using Element = std::decay_t<decltype(std::declval<V>()[0])>;

#define QUIRE_OPERATOR(sign)                                                                          \
    template <class V, class W>                                                                       \
    inline auto operator sign(const Pair<V>& one, const Pair<W>& other) {                             \
        return Pair<decltype(one.low sign other.low)>{one.low sign other.low, one.high sign other.high}; \
    }                                                                                                 \
    template <class V, class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>          \
    inline auto operator sign(const Pair<V>& one, Number number) {                                    \
        const auto same = Element<V>(number);                                                         \
        return Pair<decltype(one.low sign same)>{one.low sign same, one.high sign same};              \
    }                                                                                                 \
    template <class V, class Number, class = std::enable_if_t<std::is_arithmetic_v<Number>>>          \
    inline auto operator sign(Number number, const Pair<V>& other) {                                  \
        const auto same = Element<V>(number);                                                         \
        return Pair<decltype(same sign other.low)>{same sign other.low, same sign other.high};        \
    }
#define QUIRE_ASSIGNMENT(sign)                                  \
    QUIRE_OPERATOR(sign)                                        \
    template <class V, class W>                                 \
    inline Pair<V>& operator sign##=(Pair<V>& one, const W& other) { \
        return one = one sign other;                            \
    }
QUIRE_ASSIGNMENT(+)
QUIRE_ASSIGNMENT(-)
QUIRE_ASSIGNMENT(*)
QUIRE_ASSIGNMENT(/)
QUIRE_ASSIGNMENT(&)
QUIRE_ASSIGNMENT(|)
QUIRE_ASSIGNMENT(^)
QUIRE_ASSIGNMENT(<<)
QUIRE_ASSIGNMENT(>>)
QUIRE_OPERATOR(<)
QUIRE_OPERATOR(>)
QUIRE_OPERATOR(>=)
QUIRE_OPERATOR(==)
QUIRE_OPERATOR(!=)
#undef QUIRE_OPERATOR
#undef QUIRE_ASSIGNMENT

template <class V>
inline Pair<V> operator-(const Pair<V>& one) {
    return {-one.low, -one.high};
}
template <class V>
inline Pair<V> operator~(const Pair<V>& one) {
    return {~one.low, ~one.high};
}

// 16 lanes of what a register has PART of.
template <class R>
using Wide = std::conditional_t<PART == 16, R, std::conditional_t<PART == 8, Pair<R>, Pair<Pair<R>>>>;

using f32x16 = Wide<Register<float>>;
using i32x16 = Wide<Register<int32_t>>;
using u32x16 = Wide<Register<uint32_t>>;
using u16x16 = Wide<Register<uint16_t>>;
using i16x32 = Wide<Register<int16_t, 2>>;
using u8x16 = Wide<Register<uint8_t>>;
using i8x16 = Wide<Register<int8_t>>;

// `function` of registers, applied to each part of vectors.
template <class Function, class... V>
inline auto by_part(const Function& function, const V&... vectors) {
    if constexpr ((IsPair<V>::value && ...)) {
        const auto low = by_part(function, vectors.low...);
        return Pair<std::decay_t<decltype(low)>>{low, by_part(function, vectors.high...)};
    } else {
        return function(vectors...);
    }
}

// The same vector, computed here. A compiler may otherwise compute all products of a tile before it adds any of them up,
// and store in memory what registers cannot hold.
template <class V>
inline V settled(V vector) {
    if constexpr (IsPair<V>::value) {
        return {settled(vector.low), settled(vector.high)};
    } else {
#if defined(__x86_64__)
        asm("" : "+v"(vector));
#elif defined(__aarch64__)
        asm("" : "+w"(vector));
#endif
        return vector;
    }
}

// bfloat16: the upper half of a float32.
struct bf16 {
    uint16_t bits;
};

template <class Vector, class Number>
inline Vector load_bits(const Number* from) {
    if constexpr (IsPair<Vector>::value) {
        using Half = decltype(Vector::low);
        const char* bytes = reinterpret_cast<const char*>(from);
        return {load_bits<Half>(bytes), load_bits<Half>(bytes + sizeof(Half))};
    } else {
        Vector vector;
        std::memcpy(&vector, from, sizeof(vector));
        return vector;
    }
}

template <class Vector, class Number>
inline void store_bits(Number* to, const Vector& vector) {
    if constexpr (IsPair<Vector>::value) {
        char* bytes = reinterpret_cast<char*>(to);
        store_bits(bytes, vector.low);
        store_bits(bytes + sizeof(vector.low), vector.high);
    } else {
        std::memcpy(to, &vector, sizeof(vector));
    }
}

// The same numbers as another type; whole numbers of fewer bits lose their upper ones.
template <class Number, class Vector>
inline auto convert(const Vector& vector) {
    return by_part([](auto part) { return __builtin_convertvector(part, Register<Number>); }, vector);
}

inline f32x16 widen(u16x16 halves) {
#if defined(__AVX512F__)
    return (f32x16)((u32x16)_mm512_cvtepu16_epi32((__m256i)halves) << 16);
#else
    return (f32x16)(convert<uint32_t>(halves) << 16);
#endif
}

// Intrinsics, because compilers convert the bytes one by one.
inline i32x16 to_words(i8x16 bytes) {
#if defined(__AVX512F__)
    return (i32x16)_mm512_cvtepi8_epi32((__m128i)bytes);
#elif defined(__AVX2__)
    return by_part(
        [](auto part) { return (Register<int32_t>)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)&part)); }, bytes);
#else
    return convert<int32_t>(bytes);
#endif
}

// The same with 16 bits.
inline u16x16 to_halves(i8x16 bytes) {
#if defined(__AVX512F__)
    return (u16x16)_mm256_cvtepi8_epi16((__m128i)bytes);
#elif defined(__AVX2__)
    return by_part(
        [](auto part) { return (Register<uint16_t>)_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)&part)); }, bytes);
#else
    return (u16x16)convert<int16_t>(bytes);
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
// The lower halves of lanes whose upper halves are zero.
inline __m128i low_halves(Register<uint32_t> words) {
    return _mm_packus_epi32(_mm256_castsi256_si128((__m256i)words), _mm256_extracti128_si256((__m256i)words, 1));
}
#endif

// The lowest byte of each lane.
inline u8x16 low_bytes(u32x16 words) {
#if defined(__AVX512F__)
    return (u8x16)_mm512_cvtepi32_epi8((__m512i)words);
#elif defined(__AVX2__)
    return by_part(
        [](auto part) {
            const __m128i halves = low_halves(part);
            const __m128i bytes = _mm_packus_epi16(halves, halves);
            return load_bits<Register<uint8_t>>(&bytes);
        },
        words & 0xFF);
#else
    return convert<uint8_t>(words & 0xFF);
#endif
}

// The lower halves of lanes whose upper halves are zero.
inline u16x16 lower_halves(u32x16 words) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    return by_part([](auto part) { return (Register<uint16_t>)low_halves(part); }, words);
#else
    return convert<uint16_t>(words);
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
    const u32x16 is_nan = (u32x16)(wide != wide);
    return lower_halves((is_nan & quiet) | (~is_nan & rounded));
#endif
}

// The same of numbers that a bfloat16 holds exactly.
inline u16x16 narrow_exact(f32x16 wide) {
#if defined(__AVX512BF16__)
    return narrow(wide);
#else
    return lower_halves((u32x16)wide >> 16);
#endif
}

inline f32x16 load(const float* from) { return load_bits<f32x16>(from); }
inline f32x16 load(const bf16* from) { return widen(load_bits<u16x16>(from)); }
inline f32x16 load(const int8_t* from) { return convert<float>(to_words(load_bits<i8x16>(from))); }

inline void store(float* to, f32x16 vector) { store_bits(to, vector); }
inline void store(bf16* to, f32x16 vector) { store_bits(to, narrow(vector)); }

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

// `count` numbers as float32.
inline void to_floats(const bf16* from, int64_t count, float* to) {
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) store(to + at, load(from + at));
    for (; at < count; ++at) to[at] = to_float(from[at]);
}

inline f32x16 splat(float number) { return f32x16{} + number; }

// 0, 1, .. 15.
inline i32x16 steps() {
    static constexpr int32_t NUMBERS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return load_bits<i32x16>(NUMBERS);
}

// `yes` where all bits of a lane of the mask are set, `no` where none is.
inline f32x16 select(i32x16 mask, f32x16 yes, f32x16 no) {
    return (f32x16)((mask & (i32x16)yes) | (~mask & (i32x16)no));
}

inline bool any(i32x16 mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask);
#elif defined(__AVX2__)
    const __m256i either = (__m256i)(mask.low | mask.high);
    return !_mm256_testz_si256(either, either);
#else
    int32_t found = 0;
    for (int lane = 0; lane < LANES; ++lane) found |= mask[lane];
    return found;
#endif
}

// The greater of each pair of lanes. NaN if the lane of `other` is NaN.
inline f32x16 greater(f32x16 one, f32x16 other) {
#if defined(__AVX512F__)
    return (f32x16)_mm512_max_ps((__m512)one, (__m512)other);
#elif defined(__AVX2__)
    return by_part([](auto one, auto other) { return (Register<float>)_mm256_max_ps((__m256)one, (__m256)other); }, one,
                   other);
#else
    return select(one > other, one, other);
#endif
}

// Lane i of the result is lane ORDER(i) of a register.
template <class Order, int... I>
inline Register<float> reordered(Register<float> v, Order order, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(v, v, decltype(order)::of(I)...);
}

// Rotates the lanes of a register: lane i of the result is lane i + DISTANCE.
template <int DISTANCE>
struct Rotation {
    static constexpr int of(int lane) { return (lane + DISTANCE) % PART; }
};
using Lanes = std::make_integer_sequence<int, PART>;

// All lanes combined by `combine`, which takes two vectors: halves first, then quarters, eighths, sixteenths.
template <class V, class Combine>
inline auto folded(V vector, const Combine& combine) {
    if constexpr (IsPair<V>::value) {
        return folded(combine(vector.low, vector.high), combine);
    } else {
        const auto with = [&](auto rotation) {
            vector = combine(vector, (V)reordered((Register<float>)vector, rotation, Lanes()));
        };
        if constexpr (PART > 8) with(Rotation<8>());
        if constexpr (PART > 4) with(Rotation<4>());
        with(Rotation<2>());
        with(Rotation<1>());
        return vector[0];
    }
}

inline float sum(f32x16 v) {
    return folded(v, [](auto one, auto other) { return one + other; });
}

// The greatest lane.
inline float maximum(f32x16 v) {
    return folded(v, [](auto one, auto other) {
#if defined(__AVX512F__)
        return (Register<float>)_mm512_max_ps((__m512)one, (__m512)other);
#else
        const auto more = one > other;
        using Bits = decltype(one > other);
        return (decltype(one))((more & (Bits)one) | (~more & (Bits)other));
#endif
    });
}

}  // namespace quire
