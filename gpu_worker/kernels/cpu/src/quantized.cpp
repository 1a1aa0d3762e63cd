// Products with weights of int8: as linear.cpp, with half the bytes to read.
//
// Weights are quantized once, with a scale for each output; activations in every call, with a scale for each row. Both are
// rotated before (quantize.h), unless a checkpoint brings weights of int8 and their scales, which were made for activations
// as they are.
// Where activations are stored ZERO higher (bytes.h), the sum of an output is too large by ZERO times the sum of its
// weights, its correction, which is computed when weights are packed.
#include "many_bytes.h"
#include "tape.h"
#include "unit_products.h"

namespace quire {
namespace {

// Write the results of a tile's sums.
void finish_sums(const Matrix& matrix, const Output& output, const float* row_scales, int64_t panel, int64_t row, int rows,
                 const Tile<i32x16>& tile) {
    Tile<f32x16> products;
    for (int side = 0; side < 2; ++side) {
        const int64_t column = panel * COLUMNS + side * LANES;
        const f32x16 scales = load(matrix.scales + column);
        const auto corrections = load_bits<i32x16>(matrix.corrections + column);
        for (int number = 0; number < rows; ++number) {
            const i32x16 sums = tile.sums[number][side] - corrections;
            products.sums[number][side] = convert<float>(sums) * scales * row_scales[row + number];
        }
    }
    finish_tile(matrix, output, panel, row, rows, products);
}

#if QUIRE_MATRIX_UNITS
constexpr int64_t FEW_FOR_UNITS = 4;
#endif

template <class Kind>
void multiply_all(const Matrix& matrix, const void* x, int64_t rows, void* out, int add) {
    const Output output = matrix.output(out, add);
    const auto multiply = [&](const float* scales, const auto& for_each) {
        for_each([&](int64_t panel, int64_t row, int count, const Tile<i32x16>& tile) {
            finish_sums(matrix, output, scales, panel, row, count, tile);
        });
    };
    const int64_t words = matrix.words();
#if QUIRE_AVX2_ALONE
    if (rows > MANY) {
        const Quantized source = quantize_all<ZERO>(matrix, x, rows, words, [](uint32_t*) {});
        const ManyRows tiles = in_tiles(source.rows, words);
        return multiply(source.scales, [&](const auto& finish) { for_each_tile_of_many(tiles, matrix.panels, matrix.count(), finish); });
    }
#endif
#if QUIRE_MATRIX_UNITS
    if (rows > FEW_FOR_UNITS) {
        const Quantized source = quantize_all<ZERO>(matrix, x, rows, words, [](uint32_t*) {});
        const UnitRows numbers{source.rows.words, rows, source.rows.stride, STEP_WORDS, MOST_ROWS * source.rows.stride};
        return multiply(source.scales, [&](const auto& finish) {
            for_each_tile_of_units<UnitInt8>(matrix, output, numbers, finish);
        });
    }
#endif
    const Quantized source = quantize_all<Kind::ZERO>(matrix, x, rows, words * Kind::PARTS, [&](uint32_t* row) { take_apart<Kind>(row, words); });
    multiply(source.scales, [&](const auto& finish) {
        for_each_tile<Words<Kind>>(source.rows, matrix.panels, matrix.count(), words, finish);
    });
}

}  // namespace
}  // namespace quire

// Quantize a matrix: write its panels, scales and corrections.
EXPORTED void quire_quantized_pack(const quire::Matrix* matrix, const void* weight, const float* given,
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
EXPORTED void quire_quantized_rows(const quire::Matrix* matrix, const int64_t* ids, int64_t count, void* out) {
    using namespace quire;
    const int64_t words = matrix->words();
    parallel_for(count, [&](int64_t number, int) {
        const int64_t row = ids[number];
        const uint32_t* from = matrix->panels + row / COLUMNS * words * COLUMNS + row % COLUMNS;
        for (int64_t at = 0; at < matrix->in; at += LANES) {
            const int64_t count = std::min<int64_t>(LANES, matrix->in - at);
            float values[LANES] = {};
            for (int64_t lane = 0; lane < count; ++lane)
                values[lane] = int8_t(from[(at + lane) / 4 * COLUMNS] >> ((at + lane) % 4 * 8)) * matrix->scales[row];
            if (matrix->rotates && count == LANES) store(values, rotated(load(values)));
            for (int64_t lane = 0; lane < count; ++lane) matrix->write(out, number * matrix->in + at + lane, values[lane]);
        }
    });
}

// As `quire_linear`.
EXPORTED void quire_quantized(const quire::Matrix* matrix, const void* x, int64_t rows, void* out, int add) {
    using namespace quire;
    if (rows <= FEW_ROWS) {
        multiply_all<FewRows>(*matrix, x, rows, out, add);
    } else {
        multiply_all<Int8>(*matrix, x, rows, out, add);
    }
}
PLAYABLE(quire_quantized)
