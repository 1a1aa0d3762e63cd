// Quantized rows of activations, for products with quantized weights.
#pragma once

#include <algorithm>

#include "matrix.h"
#include "quantize.h"

namespace quire {

// Rows of bytes in `scratch`, followed by a scale for each row.
struct Quantized {
    Rows rows;
    const float* scales;
};

// Quantize one row, LANES numbers at a time, rotated if the matrix is. Bytes are numbers + OFFSET. Returns the row's scale,
// which is `given`, if it is not null.
template <int OFFSET>
float quantize(const Matrix& matrix, const void* rows, int64_t row, uint8_t* to, const float* given = nullptr) {
    if (matrix.type == Type::float32)
        return quantize_row<OFFSET>(static_cast<const float*>(rows) + row * matrix.in, matrix.in, to, given, matrix.rotates);
    return quantize_row<OFFSET>(static_cast<const bf16*>(rows) + row * matrix.in, matrix.in, to, given, matrix.rotates);
}

// The sum of bytes.
inline int32_t sum_of(const int8_t* bytes, int64_t count) {
    i32x16 sums = {};
    int64_t at = 0;
    for (; at + LANES <= count; at += LANES) sums += to_words(load_bits<i8x16>(bytes + at));
    int32_t sum = folded(sums, [](auto one, auto other) { return one + other; });
    for (; at < count; ++at) sum += bytes[at];
    return sum;
}

// Call `fill(row, to)` for each row of `memory`, `stride` words apart.
template <class Fill>
void fill_rows(uint32_t* memory, int64_t count, int64_t stride, const Fill& fill) {
    constexpr int64_t BLOCK = 8;
    prepare((count + BLOCK - 1) / BLOCK, [&](int64_t block, int) {
        for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK && row < count; ++row) fill(row, memory + row * stride);
    });
}

// Quantize all rows of x. `words`: memory for a row, in words. Calls `then(row)` after each row, with its words.
template <int OFFSET, class Then>
Quantized quantize_all(const Matrix& matrix, const void* x, int64_t count, int64_t words, const Then& then) {
    const int64_t stride = padded_stride(words);
    uint32_t* memory = scratch(count * (stride + 1));
    float* scales = reinterpret_cast<float*>(memory + count * stride);
    fill_rows(memory, count, stride, [&](int64_t row, uint32_t* to) {
        scales[row] = quantize<OFFSET>(matrix, x, row, reinterpret_cast<uint8_t*>(to));
        then(to);
    });
    return {{memory, count, stride}, scales};
}

// Quantize all rows of x in groups of `size` numbers, each with a scale of its own: in a row, a few numbers are often many
// times as large as all others, which one scale would round to nothing. `words`: memory for a row, in words; from `place` on
// it has the scales. Calls `then(row)` after each row, with its words.
template <class Then>
Rows quantize_in_groups(const Matrix& matrix, const void* x, int64_t count, int64_t size, int64_t words, int64_t place,
                        const Then& then) {
    const int64_t stride = padded_stride(words);
    uint32_t* memory = scratch(count * stride + size / 4);  // the last group is read as a whole
    const auto quantize_groups = [&](const auto* from, uint32_t* to) {
        float* scales = reinterpret_cast<float*>(to + place);
        for (int64_t at = 0; at < matrix.in; at += size)
            *scales++ = quantize_row<0>(from + at, std::min(size, matrix.in - at), reinterpret_cast<uint8_t*>(to) + at);
    };
    fill_rows(memory, count, stride, [&](int64_t row, uint32_t* to) {
        if (matrix.type == Type::float32)
            quantize_groups(static_cast<const float*>(x) + row * matrix.in, to);
        else
            quantize_groups(static_cast<const bf16*>(x) + row * matrix.in, to);
        then(to);
    });
    return {memory, count, stride};
}

}  // namespace quire
