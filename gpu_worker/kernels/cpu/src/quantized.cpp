// Products with weights of int8: as linear.cpp, with half the bytes to read.
//
// Weights are quantized once, with a scale for each output; activations in every call, with a scale for each row.
// Where an instruction wants unsigned activations, they are stored ZERO higher. That makes the sum of an output too large
// by ZERO times the sum of its weights, its correction, which is computed when weights are packed.
#include "activations.h"
#include "dot.h"
#include "tape.h"

namespace quire {
namespace {

#if QUIRE_DOT && !defined(__ARM_FEATURE_DOTPROD)
constexpr int ZERO = 128;
#else
constexpr int ZERO = 0;
#endif

// The product of words of four bytes, activations and signed weights, as exact integers.
struct Int8 {
    using Sum = i32x16;
#if QUIRE_DOT
    static constexpr int PARTS = 1;
    static u32x16 part(u32x16 words, int) { return words; }
    static Sum dot(Sum sum, u32x16 weights, u32x16 x) { return quire::dot(sum, x, weights); }
#else
    // Two bytes of each word, as 16 bits: the lower of each half, or the upper.
    static constexpr int PARTS = 2;
    static u32x16 part(u32x16 words, int number) {
        return (u32x16)((number ? (i16x32)words : (i16x32)words << 8) >> 8);
    }
    static Sum dot(Sum sum, u32x16 weights, u32x16 x) {
#if defined(__AVX512BW__)
        return settled(sum + (Sum)_mm512_madd_epi16((__m512i)weights, (__m512i)x));
#elif defined(__AVX2__)
        return settled(sum + by_part([](auto one, auto other) { return (Register<int32_t>)_mm256_madd_epi16((__m256i)one, (__m256i)other); },
                                     weights, x));
#elif defined(__SSE2__)
        return settled(sum + by_part([](auto one, auto other) { return (Register<int32_t>)_mm_madd_epi16((__m128i)one, (__m128i)other); },
                                     weights, x));
#else
        const i32x16 first = ((i32x16)(weights << 16) >> 16) * ((i32x16)(x << 16) >> 16);
        return sum + first + ((i32x16)weights >> 16) * ((i32x16)x >> 16);
#endif
    }
#endif
};

#if defined(__AVX2__) && !defined(__AVX512BW__) && !QUIRE_DOT
// The same with fewer instructions for each word of weights and more for each row: numbers get their weights' signs. Two
// products of 128 and 127 fit into 16 bits.
struct FewRows {
    using Sum = i32x16;
    static constexpr int PARTS = 1;
    static u32x16 part(u32x16 words, int) { return words; }
    static Sum dot(Sum sum, u32x16 weights, u32x16 x) {
        return settled(by_part(
            [](auto sum, auto weights, auto x) {
                const __m256i signs = (__m256i)weights, sizes = _mm256_abs_epi8(signs);
                const __m256i pairs = _mm256_maddubs_epi16(sizes, _mm256_sign_epi8((__m256i)x, signs));
                return sum + (Register<int32_t>)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
            },
            sum, weights, x));
    }
};
constexpr int64_t FEW_ROWS = 4;
#else
using FewRows = Int8;
constexpr int64_t FEW_ROWS = 0;
#endif

// The lower bytes of both halves of a word, as 16 bits with their signs.
uint32_t signed_halves(uint32_t word) {
    const uint32_t bytes = word & 0x00FF00FF, negative = word & 0x00800080;
    return bytes | negative * 0x1FE;
}

template <class Kind, class Number>
void multiply_all(const Matrix& matrix, const Quantized& x, const Output& output) {
    for_each_tile<Words<Kind>>(x.rows, matrix.panels, matrix.count(), matrix.words(),
                               [&](int64_t panel, int64_t row, int rows, Tile<i32x16>& tile) {
        Tile<f32x16> products;
        for (int side = 0; side < 2; ++side) {
            const int64_t column = panel * COLUMNS + side * LANES;
            const f32x16 scales = load(matrix.scales + column);
            const auto corrections = load_bits<i32x16>(matrix.corrections + column);
            for (int number = 0; number < rows; ++number) {
                const i32x16 sums = tile.sums[number][side] - corrections;
                products.sums[number][side] =
                    convert<float>(sums) * scales * x.scales[row + number];
            }
        }
        finish<Number>(output, panel, row, rows, products);
    });
}

template <class Kind>
void multiply_all(const Matrix& matrix, const void* x, int64_t rows, void* out, int add) {
    const int64_t words = matrix.words();
    const Quantized source = quantize_all<ZERO>(matrix, x, rows, words * Kind::PARTS, [&](uint32_t* row) {
        if constexpr (Kind::PARTS == 2)
            for (int64_t word = words - 1; word >= 0; --word) {
                const uint32_t bytes = row[word];
                row[2 * word + 1] = signed_halves(bytes >> 8);
                row[2 * word] = signed_halves(bytes);
            }
    });
    const Output output = matrix.output(out, add);
    if (matrix.writes_float32()) {
        multiply_all<Kind, float>(matrix, source, output);
    } else {
        multiply_all<Kind, bf16>(matrix, source, output);
    }
}

}  // namespace
}  // namespace quire

// Quantize a matrix: write its panels, scales and corrections.
extern "C" void quire_quantized_pack(const quire::Matrix* matrix, const void* weight, const float* given,
                                     uint32_t* panels, float* scales, int32_t* corrections) {
    using namespace quire;
    const int64_t words = matrix->words();
    parallel_for(matrix->count(), [&](int64_t panel, int) {
        std::vector<uint32_t> row(padded_stride(words));
        for (int column = 0; column < COLUMNS; ++column) {
            const int64_t source = matrix->source(panel, column);
            uint32_t* to = panels + panel * words * COLUMNS + column;
            float scale = 0;
            int32_t sum = 0;
            if (source >= 0)
                scale = quantize<0>(*matrix, weight, source, reinterpret_cast<uint8_t*>(row.data()),
                                    given ? given + source : nullptr);
            for (int64_t word = 0; word < words; ++word) {
                const uint32_t number = source >= 0 ? row[word] : 0;
                for (int shift = 0; shift < 32; shift += 8) sum += int8_t(number >> shift);
                to[word * COLUMNS] = number;
            }
            scales[panel * COLUMNS + column] = scale;
            corrections[panel * COLUMNS + column] = ZERO * sum;
        }
    });
}

// Dequantized rows of a matrix that is not gated: out [count, in].
extern "C" void quire_quantized_rows(const quire::Matrix* matrix, const int64_t* ids, int64_t count, void* out) {
    using namespace quire;
    const int64_t words = matrix->words();
    parallel_for(count, [&](int64_t number, int) {
        const int64_t row = ids[number];
        const uint32_t* from = matrix->panels + row / COLUMNS * words * COLUMNS + row % COLUMNS;
        for (int64_t at = 0; at < matrix->in; ++at) {
            const auto value = int8_t(from[at / 4 * COLUMNS] >> (at % 4 * 8)) * matrix->scales[row];
            matrix->write(out, number * matrix->in + at, value);
        }
    });
}

// As `quire_linear`.
extern "C" void quire_quantized(const quire::Matrix* matrix, const void* x, int64_t rows, void* out, int add) {
    using namespace quire;
    if (rows <= FEW_ROWS) {
        multiply_all<FewRows>(*matrix, x, rows, out, add);
    } else {
        multiply_all<Int8>(*matrix, x, rows, out, add);
    }
}
PLAYABLE(quire_quantized)
