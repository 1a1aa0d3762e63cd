// Products with weights of int8: as linear.cpp, with half the bytes to read.
//
// Weights are quantized once, with a scale for each output; activations in every call, with a scale for each row.
// Activations are stored as unsigned bytes, 128 higher. That makes the sum of an output too large by 128 times the
// sum of its weights, its correction, which is computed when weights are packed.
#include "activations.h"

namespace quire {
namespace {

constexpr int OFFSET = 128;

// The product of words of four bytes, unsigned activations and signed weights, as exact integers.
struct Int8 {
    using Sum = i32x16;
    static Sum dot(Sum sum, u32x16 weights, uint32_t x) {
        const u32x16 bytes = u32x16{} + x;
#if defined(__AVX512VNNI__)
        return (Sum)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)bytes, (__m512i)weights);
#elif defined(__AVX2__)
        using i16x32 = int16_t __attribute__((vector_size(64)));
        const i16x32 even = (i16x32)((i16x32)weights << 8) >> 8, odd = (i16x32)weights >> 8;
        sum += pairs(even, (i16x32)(bytes & 0x00FF00FF));
        return sum + pairs(odd, (i16x32)((bytes >> 8) & 0x00FF00FF));
#else
        for (int shift = 0; shift < 32; shift += 8)
            sum += ((i32x16)(weights << (24 - shift)) >> 24) * (i32x16)((bytes >> shift) & 0xFF);
        return sum;
#endif
    }

#if defined(__AVX2__) && !defined(__AVX512VNNI__)
    template <class Halves>
    static Sum pairs(Halves left, Halves right) {
#if defined(__AVX512BW__)
        return (Sum)_mm512_madd_epi16((__m512i)left, (__m512i)right);
#else
        __m256i parts[2][2];
        std::memcpy(parts[0], &left, sizeof(left));
        std::memcpy(parts[1], &right, sizeof(right));
        const __m256i products[2] = {_mm256_madd_epi16(parts[0][0], parts[1][0]),
                                     _mm256_madd_epi16(parts[0][1], parts[1][1])};
        return load_bits<Sum>(products);
#endif
    }
#endif
};

template <class Number>
void multiply_all(const Matrix& matrix, const Quantized& x, const Output& output) {
    for_each_tile<Words<Int8>>(x.rows, matrix.panels, matrix.count(), matrix.words(),
                        [&](int64_t panel, int64_t row, int rows, Tile<i32x16>& tile) {
        Tile<f32x16> products;
        for (int side = 0; side < 2; ++side) {
            const int64_t column = panel * COLUMNS + side * LANES;
            const f32x16 scales = load(matrix.scales + column);
            const auto corrections = load_bits<i32x16>(matrix.corrections + column);
            for (int number = 0; number < rows; ++number) {
                const i32x16 sums = tile.sums[number][side] - corrections;
                products.sums[number][side] =
                    __builtin_convertvector(sums, f32x16) * scales * x.scales[row + number];
            }
        }
        finish<Number>(output, panel, row, rows, products);
    });
}

}  // namespace
}  // namespace quire

// Quantize a matrix: write its panels, scales and corrections.
extern "C" void quire_quantized_pack(const quire::Matrix* matrix, const void* weight, uint32_t* panels,
                                     float* scales, int32_t* corrections) {
    using namespace quire;
    const int64_t words = matrix->words();
    parallel_for(matrix->count(), [&](int64_t panel, int) {
        std::vector<uint32_t> row(padded_stride(words));
        for (int column = 0; column < COLUMNS; ++column) {
            const int64_t source = matrix->source(panel, column);
            uint32_t* to = panels + panel * words * COLUMNS + column;
            float scale = 0;
            int32_t sum = 0;
            if (source >= 0) scale = quantize<OFFSET>(*matrix, weight, source, reinterpret_cast<uint8_t*>(row.data()));
            for (int64_t word = 0; word < words; ++word) {
                const uint32_t number = source >= 0 ? row[word] ^ 0x80808080 : 0;  // minus OFFSET
                for (int shift = 0; shift < 32; shift += 8) sum += int8_t(number >> shift);
                to[word * COLUMNS] = number;
            }
            scales[panel * COLUMNS + column] = scale;
            corrections[panel * COLUMNS + column] = OFFSET * sum;
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
    const Quantized source = quantize_all<OFFSET>(*matrix, x, rows, matrix->words(), [](uint32_t*) {});
    const Output output = matrix->output(out, add);
    if (matrix->writes_float32()) {
        multiply_all<float>(*matrix, source, output);
    } else {
        multiply_all<bf16>(*matrix, source, output);
    }
}
