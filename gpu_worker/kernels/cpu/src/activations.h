// Quantized rows of activations, for products with quantized weights.
#pragma once

#include "matrix.h"
#include "quantize.h"

namespace quire {

// Rows of bytes in `scratch`, followed by a scale for each row.
struct Quantized {
    Rows rows;
    const float* scales;
};

// Quantize one row, LANES numbers at a time. Bytes are numbers + OFFSET. Returns the row's scale, which is `given`, if
// it is not null.
template <int OFFSET>
float quantize(const Matrix& matrix, const void* rows, int64_t row, uint8_t* to, const float* given = nullptr) {
    if (matrix.type == Type::float32)
        return quantize_row<OFFSET>(static_cast<const float*>(rows) + row * matrix.in, matrix.in, to, given);
    return quantize_row<OFFSET>(static_cast<const bf16*>(rows) + row * matrix.in, matrix.in, to, given);
}

// Quantize all rows of x. `words`: memory for a row, in words. Calls `then(row)` after each row, with its words.
template <int OFFSET, class Then>
Quantized quantize_all(const Matrix& matrix, const void* x, int64_t count, int64_t words, const Then& then) {
    constexpr int64_t BLOCK = 8;
    const int64_t stride = padded_stride(words);
    uint32_t* memory = scratch(count * (stride + 1));
    float* scales = reinterpret_cast<float*>(memory + count * stride);
    prepare((count + BLOCK - 1) / BLOCK, [&](int64_t block, int) {
        for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK && row < count; ++row) {
            uint32_t* to = memory + row * stride;
            scales[row] = quantize<OFFSET>(matrix, x, row, reinterpret_cast<uint8_t*>(to));
            then(to);
        }
    });
    return {{memory, count, stride}, scales};
}

}  // namespace quire
