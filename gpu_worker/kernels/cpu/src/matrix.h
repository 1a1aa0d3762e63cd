// A packed weight matrix, described by Python.
#pragma once

#include "activation.h"
#include "epilogue.h"
#include "panels.h"

namespace quire {

enum class Type : int32_t { float32, bfloat16 };

struct Codes;  // see coded.cpp

// `Matrix` in linear.py has the same fields. Without an activation the matrix is [width, in]. With an activation it is
// gated: gates and then ups, [2 * width, in].
struct Matrix {
    const uint32_t* panels;
    const float* bias;           // one for each column of all panels, or null
    const float* scales;         // int8: one for each column; otherwise null
    const int32_t* corrections;  // int8: excess of each column's sums (see quantized.cpp); otherwise null
    int64_t in;
    int64_t width;
    Type type;  // of x, of the result, and of weights that are not quantized
    Activation activation;
    int32_t wide;  // 1: results are float32, whatever `type` is
    const uint16_t* shifts;  // int4: of each panel's groups that have one, COLUMNS float16 (see int4.cpp); or null
    int64_t shift_groups;    // int4: groups that share a shift
    const Codes* codes;      // of codes: what they mean; otherwise null
    int32_t rotates;         // int8: rows of x and of weights are rotated before they are quantized (see quantize.h)

    bool gated() const { return activation != Activation::none; }
    int64_t row_bytes() const { return in * (type == Type::float32 ? sizeof(float) : sizeof(bf16)); }
    int64_t words() const { return ((scales ? in : row_bytes()) + 3) / 4; }
    int64_t count() const {
        const int64_t columns = gated() ? LANES : COLUMNS;
        return (width + columns - 1) / columns;
    }

    // The row of the original matrix in a column of a panel, or -1 if the column is padding.
    int64_t source(int64_t panel, int column) const {
        if (!gated()) {
            const int64_t row = panel * COLUMNS + column;
            return row < width ? row : -1;
        }
        const int64_t row = panel * LANES + column % LANES;
        return row < width ? row + (column < LANES ? 0 : width) : -1;
    }

    bool writes_float32() const { return wide || type == Type::float32; }

    // Write one number at `place` of rows of the original matrix.
    void write(void* rows, int64_t place, float number) const {
        if (type == Type::float32) {
            static_cast<float*>(rows)[place] = number;
        } else {
            from_float(static_cast<bf16*>(rows) + place, number);
        }
    }

    Output output(void* numbers, bool add) const { return {numbers, width, width, bias, activation, add}; }
};

// Write the results of a tile's sums.
inline void finish_tile(const Matrix& matrix, const Output& output, int64_t panel, int64_t row, int count, Tile<f32x16>& sums) {
    if (matrix.writes_float32())
        finish<float>(output, panel, row, count, sums);
    else
        finish<bf16>(output, panel, row, count, sums);
}

}  // namespace quire
