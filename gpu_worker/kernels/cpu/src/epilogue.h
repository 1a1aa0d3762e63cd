// What becomes of a tile's sums: bias, gate, residual, and rounding to the type of the activations.
#pragma once

#include "activation.h"
#include "panels.h"

namespace quire {

// Where a product goes.
struct Output {
    void* numbers;      // [rows, width]
    int64_t width;      // outputs; of a gated matrix, the pairs of gate and up
    const float* bias;  // one for each column of all panels, or null
    Activation activation;  // `none`: the panels are not gated
    bool add;           // to what is there already
};

template <class Number>
void put(Number* to, f32x16 sums, int64_t count, bool add) {
    if (count >= LANES) return store(to, add ? load(to) + sums : sums);
    for (int64_t lane = 0; lane < count; ++lane)
        from_float(to + lane, add ? to_float(to[lane]) + sums[lane] : sums[lane]);
}

template <class Number>
void finish(const Output& output, int64_t panel, int64_t row, int rows, Tile<f32x16>& tile) {
    const bool gated = output.activation != Activation::none;
    const int64_t column = panel * (gated ? LANES : COLUMNS);
    const int64_t count = output.width - column;
    Number* to = static_cast<Number*>(output.numbers) + row * output.width + column;
    for (int number = 0; number < rows; ++number, to += output.width) {
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
