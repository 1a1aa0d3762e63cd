// The epilogue of a product, from a tile's sums to results: bias, gate, residual, rounding.
#pragma once

#include "activation.h"
#include "panels.h"

namespace quire {

// The results of a product.
struct Output {
    void* numbers;      // [rows, width], or a part of longer rows
    int64_t width;      // number of outputs; gate and up are one output
    int64_t stride;     // numbers between two rows
    const float* bias;  // one for each column of all panels, or null
    Activation activation;  // `none`: the panels are not gated
    bool add;           // add to the numbers that are there, the residual
};

template <class Number>
void put(Number* to, f32x16 sums, int64_t count, bool add) {
    if (count >= LANES) return store(to, add ? load(to) + sums : sums);
    for (int64_t lane = 0; lane < count; ++lane)
        from_float(to + lane, add ? to_float(to[lane]) + sums[lane] : sums[lane]);
}

// Prefetch where a tile's results go: waiting for that memory would take longer than writing to it. `size`: of a number.
inline void fetch(const Output& output, int64_t panel, int64_t row, int rows, int64_t size) {
    const int64_t bytes = (output.activation == Activation::none ? COLUMNS : LANES) * size, stride = output.stride * size;
    const char* to = static_cast<const char*>(output.numbers) + row * stride + panel * bytes;
    for (int number = 0; number < rows; ++number, to += stride)
        for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(to + at, 1);
}

template <class Number>
void finish(const Output& output, int64_t panel, int64_t row, int rows, Tile<f32x16>& tile) {
    const bool gated = output.activation != Activation::none;
    const int64_t column = panel * (gated ? LANES : COLUMNS);
    const int64_t count = output.width - column;
    Number* to = static_cast<Number*>(output.numbers) + row * output.stride + column;
    for (int number = 0; number < rows; ++number, to += output.stride) {
        f32x16 left = tile.sums[number][0], right = tile.sums[number][1];
        if (output.bias) {
            left += load(output.bias + panel * COLUMNS);
            right += load(output.bias + panel * COLUMNS + LANES);
        }
        if (gated) {
            put(to, activate(output.activation, left) * right, count, output.add);
        } else {
            put(to, left, count, output.add);
            if (count > LANES) put(to + LANES, right, count - LANES, output.add);
        }
    }
}

}  // namespace quire
