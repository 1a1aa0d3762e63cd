// Weight panels, the layout of a weight matrix [out, in], and the product of a tile of rows with a panel.
//
// Numbers along `in` form words of 32 bits (one float32, two bfloat16, four int8). 32 outputs form a panel, which is
// read once from its beginning to its end:
//
//     panel 0                                            panel 1
//     word 0: output 0, 1, .. 31 │ word 1: output 0 ..   word 0: output 32, 33 ..
//
// Missing numbers of the last word and the last panel are zero. The first 16 columns of a gated panel are gates, the
// other 16 columns are their ups.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "matrix_units.h"
#include "rows.h"
#include "simd.h"
#include "team.h"

namespace quire {

constexpr int COLUMNS = 2 * LANES;

// Rows of a tile. The sums of both halves of a panel fit in registers for up to BOTH_HALVES rows; for more, the halves
// are multiplied one after the other.
constexpr int TILE_ROWS = PART == 16 ? SUMS / 2 : SUMS;
constexpr int BOTH_HALVES = PART == 16 ? TILE_ROWS : SUMS / 3;

// Matrix units have a register for 16 rows of each half of a panel, twice.
#if QUIRE_MATRIX_UNITS
constexpr int MOST_ROWS = 2 * REGISTER_ROWS;
#else
constexpr int MOST_ROWS = TILE_ROWS;
#endif

// Rows that a task multiplies with a panel.
constexpr int TASK_ROWS = 8 * TILE_ROWS;

// Distance of prefetching, in words, for tiles of at least COMPUTING rows. Tiles of fewer rows wait for memory anyway,
// and the processor's own prefetching is faster for them.
constexpr int AHEAD = 32 * COLUMNS;
constexpr int COMPUTING = 3;
constexpr int64_t BLOCK = 16;  // words of a panel's block

// The product of words of one float32. Words are multiplied in PARTS parts. `part` takes a part of 16 words of weights.
// Of a word of x all parts lie side by side, a word each. `dot` adds the product of a part of weights and of 16 copies
// of that part of x to the sums of 16 columns.
struct Float32 {
    using Sum = f32x16;
    static constexpr int PARTS = 1;
    static u32x16 part(u32x16 words, int) { return words; }
    static Sum dot(Sum sum, u32x16 weights, u32x16 x) { return sum + (f32x16)weights * (f32x16)x; }
};

// The product of words of two bfloat16, in two float32 parts.
struct BFloat16 {
    using Sum = f32x16;
    static constexpr int PARTS = 2;
    static u32x16 part(u32x16 words, int number) { return number ? words & 0xFFFF0000u : words << 16; }
    static Sum dot(Sum sum, u32x16 weights, u32x16 x) { return sum + (f32x16)weights * (f32x16)x; }
};

#if defined(__AVX512BF16__)
// The same by the instruction that multiplies pairs of bfloat16.
struct BFloat16Pairs {
    using Sum = f32x16;
    static constexpr int PARTS = 1;
    static u32x16 part(u32x16 words, int) { return words; }
    static Sum dot(Sum sum, u32x16 weights, u32x16 x) {
        return (Sum)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)x);
    }
};
#endif

#if defined(__AVX512BF16__) && !QUIRE_MATRIX_UNITS
#define QUIRE_PAIRS 1
// Whether that instruction multiplies: some processors take longer for it than for two parts.
inline bool pairs = true;
#endif

// The sums of one panel's columns for each of a tile's rows.
template <class Sum>
struct Tile {
    Sum sums[MOST_ROWS][2];
};

// Multiplication of panels word by word, with `Dot`.
template <class Dot>
struct Words {
    using Sum = typename Dot::Sum;
    static constexpr int ROWS = TILE_ROWS;
    static constexpr int64_t SIZE = COLUMNS;

    // Multiply the panel's halves FIRST to LAST - 1. x: the first of COUNT rows, `stride` words apart. Its own words are
    // prefetched AHEAD, each half by itself. SHARE: words to prefetch from `later` on for each word of the panel.
    template <int SHARE, int COUNT, int FIRST, int LAST>
    static void multiply(const uint32_t* x, int64_t stride, const uint32_t* panel, int64_t words,
                         const uint32_t* later, Tile<Sum>& tile) {
        add<COUNT >= COMPUTING, SHARE, COUNT, FIRST, LAST>(x, stride, panel, words, true, later, tile);
    }

    // Multiply a panel in blocks: the first half of a block, while both halves of the next are prefetched, and then the
    // second half out of the L1 cache.
    template <int COUNT>
    static void multiply_in_blocks(const uint32_t* x, int64_t stride, const uint32_t* panel, int64_t words,
                                   Tile<Sum>& tile) {
        for (int64_t begin = 0; begin < words; begin += BLOCK, x += BLOCK * Dot::PARTS, panel += BLOCK * COLUMNS) {
            const int64_t count = std::min(BLOCK, words - begin);
            const uint32_t* next = panel + count * COLUMNS;
            add<false, COLUMNS, COUNT, 0, 1>(x, stride, panel, count, begin == 0, next, tile);
            add<false, 0, COUNT, 1, 2>(x, stride, panel, count, begin == 0, next, tile);
        }
    }

    // Add the products with a part of a panel that lies in the L1 cache to the tile's sums, or to 0 if the panel `begins`
    // with it.
    template <int COUNT>
    static void multiply_part(const uint32_t* x, int64_t stride, const uint32_t* part, int64_t words, bool begins,
                              Tile<Sum>& tile) {
        if constexpr (COUNT <= BOTH_HALVES) {
            add<false, 0, COUNT, 0, 2>(x, stride, part, words, begins, part, tile);
        } else {
            add<false, 0, COUNT, 0, 1>(x, stride, part, words, begins, part, tile);
            add<false, 0, COUNT, 1, 2>(x, stride, part, words, begins, part, tile);
        }
    }

private:
    // Add the products with `words` words to the tile's sums, or to 0 if the panel `begins` with them. Words are added up
    // one by one, from the first to the last, for any COUNT, so that the result of a row does not depend on the other rows.
    template <bool OWN, int SHARE, int COUNT, int FIRST, int LAST>
    static void add(const uint32_t* x, int64_t stride, const uint32_t* panel, int64_t words, bool begins,
                    const uint32_t* later, Tile<Sum>& tile) {
        Sum sums[COUNT][2] = {};
        if (!begins)
#pragma GCC unroll 16
            for (int row = 0; row < COUNT; ++row)
#pragma GCC unroll 2
                for (int half = FIRST; half < LAST; ++half) sums[row][half] = tile.sums[row][half];
        for (int64_t word = 0; word < words; ++word, panel += COLUMNS) {
            if (OWN)
#pragma GCC unroll 2
                for (int half = FIRST; half < LAST; ++half) __builtin_prefetch(panel + AHEAD + half * LANES);
#pragma GCC unroll 2
            for (int at = 0; at < SHARE; at += LANES) __builtin_prefetch(later + word * SHARE + at);
#pragma GCC unroll 4
            for (int part = 0; part < Dot::PARTS; ++part) {
                u32x16 weights[2];
#pragma GCC unroll 2
                for (int half = FIRST; half < LAST; ++half)
                    weights[half] = Dot::part(load_bits<u32x16>(panel + half * LANES), part);
#pragma GCC unroll 16
                for (int row = 0; row < COUNT; ++row) {
                    const u32x16 number = u32x16{} + x[row * stride + word * Dot::PARTS + part];
#pragma GCC unroll 2
                    for (int half = FIRST; half < LAST; ++half)
                        sums[row][half] = Dot::dot(sums[row][half], weights[half], number);
                }
            }
        }
#pragma GCC unroll 16
        for (int row = 0; row < COUNT; ++row)
#pragma GCC unroll 2
            for (int half = FIRST; half < LAST; ++half) tile.sums[row][half] = sums[row][half];
    }
};

template <class Kind>
using Multiply = void (*)(const uint32_t*, int64_t, const uint32_t*, int64_t, const uint32_t*,
                          Tile<typename Kind::Sum>&);

// A product of COUNT rows with a panel: both halves at once if their sums fit in registers, else one after the other.
// FETCHES: number of tiles that prefetch the next panel, a part each; 0 for a tile that does not. This tile's part
// begins at `later`.
template <class Kind, int FETCHES, int COUNT>
void multiply_panel(const uint32_t* x, int64_t stride, const uint32_t* panel, int64_t pieces, const uint32_t* later,
                    Tile<typename Kind::Sum>& tile) {
    constexpr int SHARE = FETCHES ? Kind::SIZE / FETCHES : 0;
    if constexpr (COUNT <= BOTH_HALVES) {
        Kind::template multiply<SHARE, COUNT, 0, 2>(x, stride, panel, pieces, later, tile);
    } else if constexpr (FETCHES == 1 && requires { Kind::template multiply_in_blocks<COUNT>; }) {
        Kind::template multiply_in_blocks<COUNT>(x, stride, panel, pieces, tile);
    } else {
        Kind::template multiply<SHARE / 2, COUNT, 0, 1>(x, stride, panel, pieces, later, tile);
        Kind::template multiply<SHARE / 2, COUNT, 1, 2>(x, stride, panel, pieces, later + pieces * SHARE / 2, tile);
    }
}

template <class Kind, int FETCHES, int... BEFORE>
constexpr std::array<Multiply<Kind>, Kind::ROWS> multiplies(std::integer_sequence<int, BEFORE...>) {
    return {multiply_panel<Kind, FETCHES, BEFORE + 1>...};
}

// A kind's products with a panel for 1, 2, .. ROWS rows.
template <class Kind, int FETCHES>
constexpr auto MULTIPLY = multiplies<Kind, FETCHES>(std::make_integer_sequence<int, Kind::ROWS>());

// All panels are multiplied with the same numbers of a row.
struct SameNumbers {
    int64_t operator()(int64_t) const { return 0; }
};

// Multiply all rows with all panels, of `pieces` times SIZE words each. Calls `finish(panel, row, rows, tile)` with
// each tile's sums. `place(panel)`: words of a row before those that the panel is multiplied with. A task is one panel and
// at most TASK_ROWS rows: the panel is read from memory once and then from the L2 cache. A single tile that reads its panel
// twice, or two tiles, prefetch what comes next, because memory and arithmetic would otherwise wait for each other. With
// more than two tiles the first one prefetches nothing, because it may wait for its own panel.
template <class Kind, class Finish, class Place = SameNumbers>
void for_each_tile(const Rows& x, const uint32_t* panels, int64_t count, int64_t pieces, const Finish& finish,
                   const Place& place = {}) {
    constexpr int64_t TASK_TILES = TASK_ROWS / Kind::ROWS;
    const int64_t size = pieces * Kind::SIZE;
    const int64_t tiles = (x.count + Kind::ROWS - 1) / Kind::ROWS;
    const int64_t parts = (tiles + TASK_TILES - 1) / TASK_TILES;
    const int64_t before = tiles > 2, fetching = tiles > 1 ? 2 : x.count > BOTH_HALVES;
    parallel_for(parts * count, [&](int64_t task, int) {
        const int64_t panel = task / parts, part = task % parts;
        const uint32_t *weights = panels + panel * size, *numbers = x.words + place(panel);
        for (int64_t number = part * tiles / parts; number < (part + 1) * tiles / parts; ++number) {
            const int64_t row = number * x.count / tiles;
            const int rows = int((number + 1) * x.count / tiles - row);
            const int64_t share = number - before;
            const bool fetches = parts == 1 && share >= 0 && share < fetching && panel + 1 < count;
            const auto& multiplies = !fetches      ? MULTIPLY<Kind, 0>
                                     : fetching == 1 ? MULTIPLY<Kind, 1>
                                                     : MULTIPLY<Kind, 2>;
            const uint32_t* later = weights + size + share * size / 2;
            Tile<typename Kind::Sum> tile;
            multiplies[rows - 1](numbers + row * x.stride, x.stride, weights, pieces, later, tile);
            finish(panel, row, rows, tile);
        }
    });
}

}  // namespace quire
