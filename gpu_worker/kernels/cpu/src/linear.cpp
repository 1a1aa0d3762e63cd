// Products with weights of float32 and bfloat16: y = x W^T + b, and its gated form.
#include <cstdlib>
#include <memory>

#include "epilogue.h"

namespace quire {
namespace {

// See `Matrix` in linear.py.
struct Matrix {
    const uint32_t* panels;
    const float* bias;
    int64_t in;
    int64_t width;
    int32_t type;  // 0: float32, 1: bfloat16
    Activation activation;

    int64_t bytes() const { return in * (type == 0 ? sizeof(float) : sizeof(bf16)); }
    int64_t words() const { return (bytes() + 3) / 4; }
    int64_t count() const {
        const int64_t columns = activation == Activation::none ? COLUMNS : LANES;
        return (width + columns - 1) / columns;
    }
};

// The row of the original matrix that a column of a panel is, or -1 for none.
int64_t source(const Matrix& matrix, int64_t panel, int column) {
    int64_t row = panel * COLUMNS + column, half = 0;
    if (matrix.activation != Activation::none) {
        row = panel * LANES + column % LANES;
        half = column < LANES ? 0 : matrix.width;
    }
    return row < matrix.width ? half + row : -1;
}

// The rows with a zero after the last number, for a width that does not fill its last word.
std::unique_ptr<uint32_t[]> pad(const Matrix& matrix, const uint8_t* x, int64_t rows) {
    std::unique_ptr<uint32_t[]> padded(new uint32_t[rows * matrix.words()]);
    for (int64_t row = 0; row < rows; ++row) {
        uint32_t* to = padded.get() + row * matrix.words();
        to[matrix.words() - 1] = 0;
        std::memcpy(to, x + row * matrix.bytes(), matrix.bytes());
    }
    return padded;
}

}  // namespace
}  // namespace quire

// Write a matrix's panels; weight: its rows, [width, in], or gates and then ups, [2 * width, in].
extern "C" void quire_pack(const quire::Matrix* matrix, const uint8_t* weight, uint32_t* panels) {
    using namespace quire;
    const int64_t words = matrix->words(), bytes = matrix->bytes();
    parallel_for(matrix->count(), [&](int64_t panel, int) {
        uint32_t* to = panels + panel * words * COLUMNS;
        for (int column = 0; column < COLUMNS; ++column) {
            const int64_t row = source(*matrix, panel, column);
            for (int64_t word = 0; word < words; ++word) {
                uint32_t number = 0;
                const int64_t left = bytes - word * 4;
                if (row >= 0) std::memcpy(&number, weight + row * bytes + word * 4, left < 4 ? left : 4);
                to[word * COLUMNS + column] = number;
            }
        }
    });
}

// Original rows of a matrix that is not gated: out [count, in]. Returns how many ids are no rows.
extern "C" int64_t quire_rows(const quire::Matrix* matrix, const int64_t* ids, int64_t count, uint8_t* out) {
    using namespace quire;
    const int64_t words = matrix->words(), bytes = matrix->bytes();
    std::atomic<int64_t> strangers{0};
    parallel_for(count, [&](int64_t number, int) {
        const int64_t row = ids[number];
        if (row < 0 || row >= matrix->width) {
            strangers.fetch_add(1);
            return;
        }
        const uint32_t* from = matrix->panels + row / COLUMNS * words * COLUMNS + row % COLUMNS;
        uint8_t* to = out + number * bytes;
        for (int64_t word = 0; word < words; ++word) {
            const int64_t left = bytes - word * 4;
            std::memcpy(to + word * 4, from + word * COLUMNS, left < 4 ? left : 4);
        }
    });
    return strangers.load();
}

// x [rows, in] to out [rows, width], or added to it; both of the matrix's type.
extern "C" void quire_linear(const quire::Matrix* matrix, const void* x, int64_t rows, void* out, int add) {
    using namespace quire;
    std::unique_ptr<uint32_t[]> padded;
    if (matrix->bytes() % 4) padded = pad(*matrix, static_cast<const uint8_t*>(x), rows);
    const Rows source{padded ? padded.get() : static_cast<const uint32_t*>(x), rows, matrix->words()};
    const Output output{out, matrix->width, matrix->bias, matrix->activation, add != 0};
    if (matrix->type == 0) {
        for_each_tile<Float32>(source, matrix->panels, matrix->count(), matrix->words(),
                               [&](int64_t panel, int64_t row, int count, Tile<f32x16>& tile) {
                                   finish<float>(output, panel, row, count, tile);
                               });
    } else {
        for_each_tile<BFloat16>(source, matrix->panels, matrix->count(), matrix->words(),
                                [&](int64_t panel, int64_t row, int count, Tile<f32x16>& tile) {
                                    finish<bf16>(output, panel, row, count, tile);
                                });
    }
}
