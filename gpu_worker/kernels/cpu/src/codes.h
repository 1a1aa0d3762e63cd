// What the codes of a matrix mean: see coded.cpp.
#pragma once

#include "half.h"
#include "matrix.h"

namespace quire {

// Numbers of one type, or none: `_Numbers` in coded.py. Two of the three are null.
struct Numbers {
    const int8_t* bytes;
    const uint16_t* halves;  // float16
    const float* floats;

    explicit operator bool() const { return bytes || halves || floats; }
    f32x16 read(int64_t at) const { return bytes ? load(bytes + at) : halves ? from_halves(load_bits<u16x16>(halves + at)) : load(floats + at); }
};

// `_Codes` in coded.py has the same fields. Scales and shifts lie in the order of panels, groups and columns, their factors
// in that of panels, spans and columns.
struct Codes {
    // A byte each: int8, fp8. 4 bits, the place of a value in a table: of floats (`table`), of int8 (`whole`), and of int8
    // from -32 to 31 (`small`). int8 in this range, less the lowest of them: 5 bits (`five`) or 6 bits (`six`).
    enum class Kind : int32_t { int8, whole, fp8, table, small, five, six } kind;
    int64_t size;            // inputs of a group, a multiple of 8; of 16 for `six`, of 32 for `five`
    int64_t span;            // inputs that share a factor, a multiple of `size`, or all
    Numbers scales, shifts;  // there may be no shifts
    const float* factors;    // of scales, or null
    const float* shift_factors;  // or null
    const int32_t* order;    // the input of each code of a row, or null: the codes' own order
    float table[16];         // of codes of 4 bits: the value of each
    int8_t whole[16];        // of `whole` and `small`: the value of each in multiples of `unit`, less `lowest`
    float unit;
    int32_t lowest;          // of `small`, `five` and `six`: the lowest value, in multiples of `unit`; otherwise 0

    int64_t groups(int64_t in) const { return (in + size - 1) / size; }

    // Inputs that activations share a scale for: a group, or a part of one with many inputs.
    int64_t part(int64_t in) const { return size > PART_INPUTS && (size % PART_INPUTS == 0 || size >= in) ? PART_INPUTS : size; }
    int64_t parts(int64_t in) const { return (in + part(in) - 1) / part(in); }
    int64_t parts_of_group(int64_t in) const { return (size + part(in) - 1) / part(in); }

    static constexpr int64_t PART_INPUTS = 64;
};

// Scales and shifts of a group of a panel, half for half.
struct Group {
    f32x16 scales[2], shifts[2] = {};
};

// Reads the groups of a panel one after the other, each for `times` parts, from the part `first` on. Scales are multiplied by
// `factor`.
class GroupReader {
public:
    GroupReader(const Matrix& matrix, int64_t panel, int64_t first, float factor, int64_t times = 1)
        : codes(*matrix.codes), factor(factor), times(times), again(first % times) {
        const int64_t groups = codes.groups(matrix.in), spans = (matrix.in + codes.span - 1) / codes.span, group = first / times;
        each = (codes.span + codes.size - 1) / codes.size;
        left = each - group % each;
        at = (panel * groups + group) * COLUMNS;
        span = (panel * spans + group / each) * COLUMNS;
    }

    Group next() {
        Group group;
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const int64_t own = half * LANES;
            group.scales[half] = codes.scales.read(at + own);
            if (codes.factors) group.scales[half] *= load(codes.factors + span + own);
            group.scales[half] *= factor;
            if (codes.shifts) group.shifts[half] = codes.shifts.read(at + own);
            if (codes.shift_factors) group.shifts[half] *= load(codes.shift_factors + span + own);
        }
        if (++again < times) return group;
        again = 0, at += COLUMNS;
        if (--left == 0) left = each, span += COLUMNS;
        return group;
    }

private:
    const Codes& codes;
    const float factor;
    const int64_t times;
    int64_t again;       // how often the present group was read
    int64_t each, left;  // groups that share a factor, and those that still share the present one
    int64_t at, span;    // the places of the next scale and of its factor
};

}  // namespace quire
