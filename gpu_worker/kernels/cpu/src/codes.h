// What the codes of a matrix mean: see coded.cpp.
#pragma once

#include "half.h"
#include "matrix.h"

namespace quire {

// `_Codes` in coded.py has the same fields. Scales and shifts lie in the order of panels, groups and columns. The scale of
// a group is one of `halves` or of `scales`, times one of `factors` if there are any.
struct Codes {
    enum class Kind : int32_t { int8, whole, fp8, table } kind;
    int64_t size;            // inputs of a group, a multiple of 8
    int64_t span;            // inputs that share a factor, a multiple of `size`
    const uint16_t* halves;  // float16, or null
    const float* scales;     // null if there are halves
    const float* factors;    // or null
    const float* shifts;     // or null
    const int32_t* order;    // the input of each code of a row, or null: the codes' own order
    float table[16];         // of codes of 4 bits: the value of each
    int8_t whole[16];        // of `whole`: the value of each in multiples of `unit`
    float unit;

    int64_t groups(int64_t in) const { return (in + size - 1) / size; }
};

// Scales and shifts of a group of a panel, half for half.
struct Group {
    f32x16 scales[2], shifts[2] = {};

    Group(const Matrix& matrix, int64_t panel, int64_t group, float factor) {
        const Codes& codes = *matrix.codes;
        const int64_t groups = codes.groups(matrix.in), spans = (matrix.in + codes.span - 1) / codes.span;
        const int64_t first = (panel * groups + group) * COLUMNS;
        const int64_t span = (panel * spans + group * codes.size / codes.span) * COLUMNS;
        for (int half = 0; half < 2; ++half) {
            const int64_t at = first + half * LANES;
            scales[half] = codes.halves ? from_halves(load_bits<u16x16>(codes.halves + at)) : load(codes.scales + at);
            if (codes.factors) scales[half] *= load(codes.factors + span + half * LANES);
            scales[half] *= factor;
            if (codes.shifts) shifts[half] = load(codes.shifts + at);
        }
    }
};

// Write the results of a tile's sums.
inline void finish_tile(const Matrix& matrix, const Output& output, int64_t panel, int64_t row, int count, Tile<f32x16>& sums) {
    if (matrix.writes_float32())
        finish<float>(output, panel, row, count, sums);
    else
        finish<bf16>(output, panel, row, count, sums);
}

}  // namespace quire
