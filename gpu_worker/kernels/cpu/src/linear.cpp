// Products with weights of float32 and bfloat16: y = x W^T + b, gated products, and products of heads.
#include "matrix.h"
#include "tape.h"
#include "unit_products.h"

// Pack a matrix: write its panels from its rows.
EXPORTED void quire_linear_pack(const quire::Matrix* matrix, const uint8_t* weight, uint32_t* panels) {
    using namespace quire;
    const int64_t words = matrix->words(), bytes = matrix->row_bytes();
    parallel_for(matrix->count(), [&](int64_t panel, int) {
        uint32_t* to = panels + panel * words * COLUMNS;
        for (int column = 0; column < COLUMNS; ++column) {
            const int64_t row = matrix->source(panel, column);
            for (int64_t word = 0; word < words; ++word) {
                uint32_t number = 0;
                const int64_t left = bytes - word * 4;
                if (row >= 0) std::memcpy(&number, weight + row * bytes + word * 4, left < 4 ? left : 4);
                to[word * COLUMNS + column] = number;
            }
        }
    });
}

// Rows of a matrix that is not gated: out [count, in]. `ids`: numbers of the rows.
EXPORTED void quire_linear_rows(const quire::Matrix* matrix, const int64_t* ids, int64_t count, uint8_t* out) {
    using namespace quire;
    const int64_t words = matrix->words(), bytes = matrix->row_bytes();
    parallel_for(count, [&](int64_t number, int) {
        const int64_t row = ids[number];
        const uint32_t* from = matrix->panels + row / COLUMNS * words * COLUMNS + row % COLUMNS;
        uint8_t* to = out + number * bytes;
        for (int64_t word = 0; word < words; ++word) {
            const int64_t left = bytes - word * 4;
            std::memcpy(to + word * 4, from + word * COLUMNS, left < 4 ? left : 4);
        }
    });
}

// Whether one instruction multiplies pairs of bfloat16, 1 or 0; -1: there is none. `use`: 1 or 0 from now on; negative: as
// before.
EXPORTED int quire_bfloat16_pairs([[maybe_unused]] int use) {
#if QUIRE_PAIRS
    if (use >= 0) quire::pairs = use;
    return quire::pairs;
#else
    return -1;
#endif
}

// Multiply x [rows, in], to out [rows, width]; `add`: add the result to out. x has the matrix's type.
EXPORTED void quire_linear(const quire::Matrix* matrix, const void* x, int64_t rows, void* out, int add) {
    using namespace quire;
    const Output output = matrix->output(out, add);
    const auto finish_sums = [&](int64_t panel, int64_t row, int count, Tile<f32x16>& tile) {
        finish_tile(*matrix, output, panel, row, count, tile);
    };
    const auto multiply = [&](auto kind, const Rows& source) {
        for_each_tile<Words<decltype(kind)>>(source, matrix->panels, matrix->count(), matrix->words(), finish_sums);
    };
    if (matrix->type == Type::float32) return multiply(Float32{}, in_words(x, rows, matrix->row_bytes()));
#if QUIRE_MATRIX_UNITS
    const UnitRows source = in_steps(x, rows, matrix->row_bytes());
    for_each_tile_of_units<UnitBFloat16>(*matrix, output, source, finish_sums);
#else
#if QUIRE_PAIRS
    if (pairs) return multiply(BFloat16Pairs{}, in_words(x, rows, matrix->row_bytes()));
#endif
    multiply(BFloat16{}, widened(static_cast<const bf16*>(x), rows, matrix->in));
#endif
}
PLAYABLE(quire_linear)

// Multiply x [rows, heads, in] with a matrix of each head, to out [rows, heads, width]. The panels of the heads' matrices, which
// are like `matrix`, follow each other.
EXPORTED void quire_heads(const quire::Matrix* matrix, int64_t heads, const void* x, int64_t rows, void* out) {
    using namespace quire;
    const int64_t panels = matrix->count(), width = matrix->width;
    const bool wide = matrix->type == Type::float32;
    const auto output_of = [&](int64_t head) {
        Output output = matrix->output(static_cast<uint8_t*>(out) + head * width * (wide ? sizeof(float) : sizeof(bf16)), false);
        output.stride = heads * width;
        return output;
    };
#if QUIRE_MATRIX_UNITS
    if (!wide && matrix->in % (2 * STEP_WORDS) == 0) {  // each head's numbers begin with a step
        UnitRows source = in_steps(x, rows, heads * matrix->row_bytes());
        Matrix one = *matrix;
        for (int64_t head = 0; head < heads; ++head) {
            const Output output = output_of(head);
            for_each_tile_of_units<UnitBFloat16>(one, output, source, [&](int64_t panel, int64_t row, int count, auto& tile) {
                finish_tile(one, output, panel, row, count, tile);
            });
            source.words += matrix->words() / STEP_WORDS * source.step;
            one.panels += panels * matrix->words() * COLUMNS;
        }
        return;
    }
#endif
    // `size`: words of a row between two heads.
    const auto multiply = [&](auto kind, const Rows& source, int64_t size) {
        for_each_tile<Words<decltype(kind)>>(
            source, matrix->panels, heads * panels, matrix->words(),
            [&](int64_t panel, int64_t row, int count, Tile<f32x16>& tile) {
                finish_tile(*matrix, output_of(panel / panels), panel % panels, row, count, tile);
            },
            [&](int64_t panel) { return panel / panels * size; });
    };
    if (wide) return multiply(Float32{}, in_words(x, rows, heads * matrix->row_bytes()), matrix->words());
#if QUIRE_PAIRS
    if (pairs && matrix->in % 2 == 0)
        return multiply(BFloat16Pairs{}, in_words(x, rows, heads * matrix->row_bytes()), matrix->words());
#endif
    multiply(BFloat16{}, widened(static_cast<const bf16*>(x), rows, heads * matrix->in), matrix->in);
}
PLAYABLE(quire_heads)
