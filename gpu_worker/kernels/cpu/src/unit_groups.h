// Products with groups of whole numbers by a processor's matrix units: of weights of 4 bits (int4.cpp), and of codes
// (coded_bytes.h).
//
// A part of a panel is unpacked to int8 in the L1 cache, and multiplied by the rows of all tiles. The exact sums of each
// group are multiplied by its scales, the weights' and the row's, and added up in registers, as for a few rows: a row has
// the same bits.
#pragma once

#include <algorithm>

#include "activations.h"
#include "panels.h"

#if QUIRE_MATRIX_UNITS

namespace quire {

// An unpacked part of a panel: bytes in the panel's order of columns, a scale and a shift of each group's columns.
struct UnitPart {
    static constexpr int64_t INPUTS = 512, SMALLEST = 32;  // inputs of a part, and of a group
    static constexpr int64_t GROUPS = INPUTS / SMALLEST;
    alignas(64) uint32_t words[INPUTS / 4 * COLUMNS];
    alignas(64) float scales[GROUPS * COLUMNS], shifts[GROUPS * COLUMNS];
};

// `number` added to each byte.
inline u32x16 sum_of_bytes(u32x16 bytes, int number) {
    return (u32x16)_mm512_add_epi8((__m512i)bytes, _mm512_set1_epi8(char(number)));
}

// How groups of `size` inputs are multiplied: in steps of so many words.
struct UnitSteps {
    int64_t steps, words;

    explicit UnitSteps(int64_t size) : steps((size / 4 + REGISTER_ROWS - 1) / REGISTER_ROWS), words(size / 4 / steps) {}

    // Whether a group of this size can be multiplied.
    static bool fit(int64_t size) {
        return size <= UnitPart::INPUTS && size % 4 == 0 && UnitSteps(size).steps * UnitSteps(size).words * 4 == size;
    }
};

// Whether the units multiply so many rows faster. They multiply whole registers of rows, and to unpack a panel takes about as
// long as one register more; these take 2/3 of the time that other instructions take for as many rows, and 5/6 with the
// smallest groups, of which sums are stored and added up as often as there is a product (Emerald Rapids, against VNNI).
inline bool units_gain(int64_t rows, int64_t size) {
    const int64_t registers = (rows + REGISTER_ROWS - 1) / REGISTER_ROWS + 1, taken = registers * REGISTER_ROWS;
    if (size < UnitPart::SMALLEST || !UnitSteps::fit(size)) return false;
    return size == UnitPart::SMALLEST ? 5 * taken < 6 * rows : 2 * taken < 3 * rows;
}

// Where a row of activations has, in words, its scales of groups, and the sums of its groups, or -1 if there are no shifts.
struct RowPlaces {
    int64_t scales, sums;
};

// Add the products of `groups` groups of a part with `rows` rows, at most 16, to their sums with the columns of `half`.
// x: the rows' bytes; `row_scales` of these groups. SHIFTS: there are shifts, and `sums` of each row's activations in these
// groups. All `stride` words apart. The totals are named one by one, because a compiler keeps an array that a loop indexes
// in memory.
template <bool SHIFTS, int... ROW>
void add_unit_groups(const UnitPart& part, int64_t groups, const UnitSteps& each, int half, const uint32_t* x,
                     const float* row_scales, const float* sums, int64_t stride, int rows, f32x16 (*totals)[2]) {
    constexpr int FOUND = 0, X = 1, WEIGHTS = 2;
    alignas(64) int32_t found[REGISTER_ROWS][LANES];
    f32x16 own[REGISTER_ROWS];
    ((own[ROW] = totals[std::min(ROW, rows - 1)][half]), ...);
    const uint32_t* weights = part.words + half * LANES;
    const float *scales = part.scales + half * LANES, *shifts = part.shifts + half * LANES;
    for (int64_t group = 0; group < groups; ++group, scales += COLUMNS, shifts += COLUMNS) {
        clear_register<FOUND>();
        for (int64_t step = 0; step < each.steps; ++step, x += each.words, weights += each.words * COLUMNS) {
            load_register<WEIGHTS>(weights, COLUMNS * sizeof(uint32_t));
            load_register<X>(x, stride * sizeof(uint32_t));
            UnitSigned::multiply<FOUND, X, WEIGHTS>();
        }
        store_register<FOUND>(found, sizeof(found[0]));
        const f32x16 scale = load(scales);
        ((own[ROW] += convert<float>(load_bits<i32x16>(found[ROW])) * (scale * row_scales[std::min(ROW, rows - 1) * stride + group])), ...);
        if constexpr (SHIFTS) {
            const f32x16 shift = load(shifts);
            ((own[ROW] += shift * sums[std::min(ROW, rows - 1) * stride + group]), ...);
        }
    }
    ((ROW < rows ? void(totals[ROW][half] = own[ROW]) : void()), ...);
}

// The function that adds groups, with shifts or without.
template <int... ROW>
auto adding_groups(bool shifts, std::integer_sequence<int, ROW...>) {
    return shifts ? add_unit_groups<true, ROW...> : add_unit_groups<false, ROW...>;
}

// Multiply all rows with all panels, of groups of `size` inputs. `unpack(panel, first, count, part)` unpacks groups; the
// inputs that the last one does not have are zeros. Calls `finish(panel, row, rows, tile)` as `for_each_tile` does.
template <class Unpack, class Finish>
void for_each_tile_of_groups(const Matrix& matrix, int64_t size, const Rows& x, const RowPlaces& places, const Unpack& unpack,
                             const Finish& finish) {
    constexpr int64_t KEPT = 1 << 20;  // bytes of the rows of a part, which stay in the L2 cache
    constexpr int64_t MOST_TILES = 8;
    const int64_t groups = (matrix.in + size - 1) / size, at_once = UnitPart::INPUTS / size;
    const int64_t tiles = (x.count + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t each = std::clamp<int64_t>(KEPT / (x.stride * int64_t(sizeof(uint32_t)) * MOST_ROWS), 1, MOST_TILES);
    const int64_t parts = (tiles + each - 1) / each, count = matrix.count();
    const UnitSteps steps(size);
    const auto add = adding_groups(places.sums >= 0, std::make_integer_sequence<int, REGISTER_ROWS>());
    parallel_for<MatrixUnits>(parts * count, [&](int64_t task, int, MatrixUnits& units) {
        const int64_t panel = task % count, first = task / count * tiles / parts, last = (task / count + 1) * tiles / parts;
        Tile<f32x16> totals[MOST_TILES] = {};
        UnitPart part;
        for (int64_t begin = 0; begin < groups; begin += at_once) {
            const int64_t now = std::min(at_once, groups - begin);
            unpack(panel, begin, now, part);
            for (int64_t row = first * MOST_ROWS; row < last * MOST_ROWS && row < x.count; row += REGISTER_ROWS) {
                const int rows = int(std::min<int64_t>(REGISTER_ROWS, x.count - row));
                RegisterShapes shapes;
                shapes.set(0, rows, LANES);
                shapes.set(1, rows, steps.words);
                shapes.set(2, steps.words, LANES);
                units.shape(shapes);
                const uint32_t* from = x.words + row * x.stride;
                const float* numbers = reinterpret_cast<const float*>(from) + begin;
                const float* sums = places.sums < 0 ? nullptr : numbers + places.sums;
                for (int half = 0; half < 2; ++half)
                    add(part, now, steps, half, from + begin * size / 4, numbers + places.scales, sums, x.stride, rows,
                        totals[row / MOST_ROWS - first].sums + row % MOST_ROWS);
            }
        }
        for (int64_t tile = first; tile < last; ++tile)
            finish(panel, tile * MOST_ROWS, int(std::min<int64_t>(MOST_ROWS, x.count - tile * MOST_ROWS)), totals[tile - first]);
    });
}

}  // namespace quire
#endif
