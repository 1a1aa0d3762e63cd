// Rows of activations as the products with quantized weights read them.
#pragma once

#include "matrix.h"
#include "quantize.h"

namespace quire {

// Rows of bytes in `scratch`, followed by what one is worth in each.
struct Quantized {
    Rows rows;
    const float* steps;
};

// One row, LANES at a time, to bytes that are OFFSET higher; returns its step.
template <int OFFSET>
float quantize(const Matrix& matrix, const void* rows, int64_t row, uint8_t* to) {
    if (matrix.type == Type::float32)
        return quantize_row<OFFSET>(static_cast<const float*>(rows) + row * matrix.in, matrix.in, to);
    return quantize_row<OFFSET>(static_cast<const bf16*>(rows) + row * matrix.in, matrix.in, to);
}

// All rows of x; `words`: of memory for each. `then(words)` gets each when its bytes are there.
template <int OFFSET, class Then>
Quantized quantize_all(const Matrix& matrix, const void* x, int64_t count, int64_t words, const Then& then) {
    constexpr int64_t BLOCK = 8;
    const int64_t stride = spread(words);
    uint32_t* memory = scratch(count * (stride + 1));
    float* steps = reinterpret_cast<float*>(memory + count * stride);
    parallel_for((count + BLOCK - 1) / BLOCK, [&](int64_t block, int) {
        for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK && row < count; ++row) {
            uint32_t* to = memory + row * stride;
            steps[row] = quantize<OFFSET>(matrix, x, row, reinterpret_cast<uint8_t*>(to));
            then(to);
        }
    });
    return {{memory, count, stride}, steps};
}

}  // namespace quire
